"""The signatures of packages that linattn.torch stands in for, without annotations, self and cls.

mamba_ssm 2.3.2 and causal_conv1d 1.7.0; those of Mamba-3 are of mamba_ssm's sources of July 2026,
which it asks to install for this layer, and state_dtype is of these, too.  flashrnn 1.0.8 and
mlstm_kernels 2.0.6, without arguments that tune kernels.  A module's name is followed by its
functions' names and their parameters.
"""

import re


def _read(text: str) -> dict[str, dict[str, str]]:
    """By module and name."""
    found = {}
    for module, *lines in (x.split("\n  ") for x in re.split(r"\n(?! )", text.strip())):
        pairs = (x.split(":", 1) for x in "\n".join(lines).replace("\n  ", " ").splitlines())
        found[module] = {x: given.strip() for names, given in pairs for x in names.split()}
    return found


MAMBA = _read("""
mamba_ssm.ops.selective_scan_interface
  selective_scan_fn selective_scan_ref: u, delta, A, B, C, D=None, z=None, delta_bias=None,
    delta_softplus=False, return_last_state=False
  mamba_inner_fn: xz, conv1d_weight, conv1d_bias, x_proj_weight, delta_proj_weight, out_proj_weight,
    out_proj_bias, A, B=None, C=None, D=None, delta_bias=None, B_proj_bias=None, C_proj_bias=None,
    delta_softplus=True, checkpoint_lvl=1, b_rms_weight=None, c_rms_weight=None, dt_rms_weight=None,
    b_c_dt_rms_eps=1e-06
  mamba_inner_ref: xz, conv1d_weight, conv1d_bias, x_proj_weight, delta_proj_weight,
    out_proj_weight, out_proj_bias, A, B=None, C=None, D=None, delta_bias=None, B_proj_bias=None,
    C_proj_bias=None, delta_softplus=True
mamba_ssm.ops.triton.selective_state_update
  selective_state_update_ref: state, x, dt, A, B, C, D=None, z=None, dt_bias=None, dt_softplus=False
  selective_state_update: state, x, dt, A, B, C, D=None, z=None, dt_bias=None, dt_softplus=False,
    state_batch_indices=None
mamba_ssm.ops.triton.ssd_combined
  mamba_chunk_scan_combined: x, dt, A, B, C, chunk_size, D=None, z=None, dt_bias=None,
    initial_states=None, seq_idx=None, cu_seqlens=None, dt_softplus=False, dt_limit=(0.0, inf),
    return_final_states=False, return_varlen_states=False, state_dtype=None
  mamba_split_conv1d_scan_combined: zxbcdt, conv1d_weight, conv1d_bias, dt_bias, A, D, chunk_size,
    initial_states=None, seq_idx=None, dt_limit=(0.0, inf), return_final_states=False,
    activation='silu', rmsnorm_weight=None, rmsnorm_eps=1e-06, outproj_weight=None,
    outproj_bias=None, headdim=None, ngroups=1, norm_before_gate=True, state_dtype=None
mamba_ssm.ops.triton.layernorm_gated
  layernorm_fn: x, weight, bias, z=None, eps=1e-06, group_size=None, norm_before_gate=True,
    is_rms_norm=False
  rmsnorm_fn: x, weight, bias, z=None, eps=1e-06, group_size=None, norm_before_gate=True
  rms_norm_ref: x, weight, bias, z=None, eps=1e-06, group_size=None, norm_before_gate=True,
    upcast=True
  LayerNorm.__init__ RMSNorm.__init__: hidden_size, eps=1e-05, group_size=None,
    norm_before_gate=True, device=None, dtype=None
  LayerNorm.forward RMSNorm.forward: x, z=None
mamba_ssm.ops.triton.layer_norm
  layer_norm_fn: x, weight, bias, residual=None, x1=None, weight1=None, bias1=None, eps=1e-06,
    dropout_p=0.0, rowscale=None, prenorm=False, residual_in_fp32=False, is_rms_norm=False,
    return_dropout_mask=False
  rms_norm_fn: x, weight, bias, residual=None, x1=None, weight1=None, bias1=None, eps=1e-06,
    dropout_p=0.0, rowscale=None, prenorm=False, residual_in_fp32=False, return_dropout_mask=False
  layer_norm_ref rms_norm_ref: x, weight, bias, residual=None, x1=None, weight1=None, bias1=None,
    eps=1e-06, dropout_p=0.0, rowscale=None, prenorm=False, dropout_mask=None, dropout_mask1=None,
    upcast=False
  layer_norm_linear_fn: x, norm_weight, norm_bias, linear_weight, linear_bias, residual=None,
    eps=1e-06, prenorm=False, residual_in_fp32=False, is_rms_norm=False
  RMSNorm.__init__: hidden_size, eps=1e-05, dropout_p=0.0, device=None, dtype=None
  RMSNorm.forward: x, residual=None, prenorm=False, residual_in_fp32=False
mamba_ssm.modules.mamba_simple
  Mamba.__init__: d_model, d_state=16, d_conv=4, expand=2, dt_rank='auto', dt_min=0.001, dt_max=0.1,
    dt_init='random', dt_scale=1.0, dt_init_floor=0.0001, conv_bias=True, bias=False,
    use_fast_path=True, layer_idx=None, device=None, dtype=None
  Mamba.forward: hidden_states, inference_params=None
  Mamba.step: hidden_states, conv_state, ssm_state
  Mamba.allocate_inference_cache: batch_size, max_seqlen, dtype=None, **kwargs
mamba_ssm.modules.mamba2
  Mamba2.__init__: d_model, d_state=128, d_conv=4, conv_init=None, expand=2, headdim=64, d_ssm=None,
    ngroups=1, A_init_range=(1, 16), D_has_hdim=False, rmsnorm=True, norm_before_gate=False,
    dt_min=0.001, dt_max=0.1, dt_init_floor=0.0001, dt_limit=(0.0, inf), bias=False, conv_bias=True,
    chunk_size=256, use_mem_eff_path=True, layer_idx=None, process_group=None,
    sequence_parallel=True, device=None, dtype=None
  Mamba2.forward: u, seqlen=None, seq_idx=None, cu_seqlens=None, inference_params=None
  Mamba2.step: hidden_states, conv_state, ssm_state
  Mamba2.allocate_inference_cache: batch_size, max_seqlen, dtype=None, **kwargs
mamba_ssm.modules.mamba3
  Mamba3.__init__: d_model, d_state=128, expand=2, headdim=64, ngroups=1, rope_fraction=0.5,
    dt_min=0.001, dt_max=0.1, dt_init_floor=0.0001, A_floor=0.0001, is_outproj_norm=False,
    is_mimo=False, mimo_rank=4, fuse_pregate_headwise_norm=True, chunk_size=64, dropout=0.0,
    layer_idx=None, n_layer=None, device=None, dtype=None, **kwargs
  Mamba3.forward: u, seq_idx=None, cu_seqlens=None, inference_params=None
  Mamba3.step: u, angle_state, ssm_state, k_state, v_state, **kwargs
  Mamba3.allocate_inference_cache: batch_size, max_seqlen, device=None, dtype=None,
    inplace_state=None, **kwargs
  heavy_tail_activation: x
mamba_ssm.ops.triton.mamba3.mamba3_siso_combined
  mamba3_siso_combined: Q, K, V, ADT, DT, Trap, Q_bias, K_bias, Angles, D=None, Z=None,
    Input_States=None, chunk_size=64, return_final_states=False, cu_seqlens=None
mamba_ssm.ops.triton.mamba3.mamba3_siso_step
  mamba3_siso_step: Q, K, V, ADT, DT, Trap, Q_bias, K_bias, Angles, D=None, Z=None,
    Input_States=None
mamba_ssm.ops.triton.mamba3.mamba3_mimo_rotary_step
  apply_rotary_qk_inference_fwd: q, k, angle_state, angle_proj, dt, bias_q=None, bias_k=None,
    inplace=False, conjugate=False, rotate_pairwise=True
mamba_ssm.ops.tilelang.mamba3.mamba3_mimo
  mamba3_mimo: Q, K, V, ADT, DT, Trap, Q_bias, K_bias, MIMO_V, MIMO_Z, MIMO_Out, Angles, D, Z,
    chunk_size, rotary_dim_divisor, dtype, return_state=False, cu_seqlens=None,
    fuse_pregate_headwise_rms_norm=False, outproj_norm_weight=None, outproj_norm_eps=1e-05
mamba_ssm.ops.cute.mamba3.mamba3_step_fn
  mamba3_step_fn: state, Bstate, Xstate, A, B, C, D, x, dt, trap, xproj, outproj=None,
    state_out=None, out=None, z=None, zproj=None, tile_D=64, num_warps=2
mamba_ssm.modules.block
  Block.__init__: dim, mixer_cls, mlp_cls, norm_cls=LayerNorm, fused_add_norm=False,
    residual_in_fp32=False
  Block.forward: hidden_states, residual=None, inference_params=None, **mixer_kwargs
  Block.allocate_inference_cache: batch_size, max_seqlen, dtype=None, **kwargs
mamba_ssm.modules.mlp
  GatedMLP.__init__: in_features, hidden_features=None, out_features=None, activation=silu,
    bias=False, multiple_of=128, device=None, dtype=None
  GatedMLP.forward: x
mamba_ssm.models.mixer_seq_simple
  create_block: d_model, d_intermediate, ssm_cfg=None, attn_layer_idx=None, attn_cfg=None,
    norm_epsilon=1e-05, rms_norm=False, residual_in_fp32=False, fused_add_norm=False,
    layer_idx=None, device=None, dtype=None
  MixerModel.__init__: d_model, n_layer, d_intermediate, vocab_size, ssm_cfg=None,
    attn_layer_idx=None, attn_cfg=None, norm_epsilon=1e-05, rms_norm=False, initializer_cfg=None,
    fused_add_norm=False, residual_in_fp32=False, device=None, dtype=None
  MixerModel.forward: input_ids, inference_params=None, **mixer_kwargs
  MambaLMHeadModel.__init__: config, initializer_cfg=None, device=None, dtype=None
  MambaLMHeadModel.forward: input_ids, position_ids=None, inference_params=None, num_last_tokens=0,
    **mixer_kwargs
  MambaLMHeadModel.from_pretrained: pretrained_model_name, device=None, dtype=None, **kwargs
  MambaLMHeadModel.save_pretrained: save_directory
mamba_ssm.utils.generation
  sample: logits, top_k=1, top_p=0.0, min_p=0.0, temperature=1.0
  decode: input_ids, model, max_length, top_k=1, top_p=0.0, min_p=0.0, temperature=1.0,
    repetition_penalty=1.0, eos_token_id=None, teacher_outputs=None, vocab_size=None, cg=False,
    enable_timing=False, output_scores=False, streamer=None
  GenerationMixin.generate: input_ids, max_length, top_k=1, top_p=0.0, min_p=0.0, temperature=1.0,
    return_dict_in_generate=False, output_scores=False, **kwargs
  InferenceParams.reset: max_seqlen, max_batch_size
mamba_ssm.utils.hf
  load_config_hf: model_name
  load_state_dict_hf: model_name, device=None, dtype=None
causal_conv1d.causal_conv1d_interface
  causal_conv1d_fn: x, weight, bias=None, seq_idx=None, initial_states=None,
    return_final_states=False, final_states_out=None, activation=None
  causal_conv1d_ref: x, weight, bias=None, initial_states=None, return_final_states=False,
    final_states_out=None, activation=None
  causal_conv1d_update_ref: x, conv_state, weight, bias=None, activation=None, cache_seqlens=None
  causal_conv1d_update: x, conv_state, weight, bias=None, activation=None, cache_seqlens=None,
    conv_state_indices=None
causal_conv1d.causal_conv1d_varlen
  causal_conv1d_varlen_states causal_conv1d_varlen_states_ref: x, cu_seqlens, state_len
""")

_TOKENS = "q, k, v, i, f, c_initial=None, n_initial=None, m_initial=None"
_SEQUENCE = f"{_TOKENS}, return_last_states=False, eps=1e-06"
_CHUNKS = f"{_SEQUENCE}, chunk_size=64"
_WRAPPED = (
    "q, k, v, f, i, c_initial=None, n_initial=None, m_initial=None, return_last_states={}, "
    "eps=1e-06, autocast_kernel_dtype=torch.bfloat16, chunk_size=64"
)
_WRAPPER = (
    f"mlstm_chunkwise_kernel, mlstm_sequence_kernel, mlstm_step_kernel, {_WRAPPED.format(True)}, "
    "dtype_state=torch.float32"
)
_STEP = "q, k, v, i, f, c, n, m, eps=1e-06, dtype_state=torch.float32"

XLSTM = _read(f"""
flashrnn
  flashrnn: Wx, R, b, states=None, function='lstm', config=None, backend='cuda_fused',
    dtype='bfloat16'
  FlashRNNConfig: backend='cuda_fused', function='lstm', gradient_recurrent_cut=False,
    gradient_recurrent_clipval=None, forward_clipval=None, constants=None, simple_agg=True,
    hidden_dim=-1, num_heads=-1, head_dim=-1, num_states=4, num_gates_r=4, num_gates_w=4,
    num_gates_i=4, num_gates_t=4, batch_size=8, input_shape='BTGHD', output_shape='SBTHD',
    recurrent_shape='GHDP', bias_shape='GHD'
mlstm_kernels.torch
  get_available_mlstm_kernels get_available_mlstm_sequence_kernels get_available_mlstm_step_kernels:
  get_mlstm_kernel get_mlstm_sequence_kernel get_mlstm_step_kernel: name
mlstm_kernels.torch.backend_module
  mLSTMBackendConfig: chunkwise_kernel='chunkwise--native_autograd',
    sequence_kernel='native_sequence__native', step_kernel='native', mode='train', chunk_size=64,
    return_last_states=True, autocast_kernel_dtype='bfloat16', eps=1e-06,
    inference_state_dtype='float32', normalize_siging=True
  mLSTMBackend: config
  mLSTMBackend.forward: {_TOKENS}, return_last_states=None, mode=None
mlstm_kernels.torch.kernel_wrappers
  wrap_chunkwise__arbitrary_sequence_length wrap_chunkwise__arbitrary_sequence_length_with_padding:
    {_WRAPPER}
  wrap_chunkwise__pad_zeros: mlstm_chunkwise_kernel, {_WRAPPED.format(False)}
mlstm_kernels.torch.chunkwise
  mlstm_chunkwise__native_autograd mlstm_chunkwise__native_custbw mlstm_chunkwise__limit_chunk:
    {_CHUNKS}
  mlstm_chunkwise__xl_chunk: {_SEQUENCE}
  mlstm_siging_chunkwise__xl_chunk: {_SEQUENCE}, normalize=True, chunk_size=128
mlstm_kernels.torch.parallel
  mlstm_parallel__native_autograd mlstm_parallel__native_stablef_custbw
    mlstm_parallel__limit_headdim: {_SEQUENCE}
  mlstm_siging_parallel__native_autograd: {_SEQUENCE}, stable_fgate=True, normalize=True
mlstm_kernels.torch.recurrent
  mlstm_recurrent_step__native mlstm_recurrent_step__triton: {_STEP}
  mlstm_recurrent_sequence__native_fw mlstm_recurrent_sequence__triton_step_fused_fw: {_SEQUENCE},
    dtype_state=torch.float32
mlstm_kernels.torch.chunkwise.native
  mlstm_chunkwise__native_autograd: {_CHUNKS}
mlstm_kernels.torch.chunkwise.triton_limit_chunk
  mlstm_chunkwise__limit_chunk: {_CHUNKS}
mlstm_kernels.torch.chunkwise.triton_xl_chunk
  mlstm_chunkwise__xl_chunk: {_SEQUENCE}
mlstm_kernels.torch.parallel.native_siging
  mlstm_siging_parallel__native_custbw: {_SEQUENCE}, stable_fgate=True, normalize=True
mlstm_kernels.torch.parallel.triton_limit_headdim
  mlstm_parallel__limit_headdim: {_SEQUENCE}
mlstm_kernels.torch.recurrent.native_step
  mlstm_recurrent_step__native: {_STEP}
mlstm_kernels.torch.recurrent.triton_step
  mlstm_recurrent_step__triton: {_STEP}
""")
