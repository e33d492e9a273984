"""The signatures of mamba_ssm 2.3.2 and causal_conv1d 1.7.0, without annotations, self and cls.

Those of Mamba-3 are of mamba_ssm's sources of July 2026, which it asks to install for this layer.
"""

#: By module and name.
SIGNATURES = {
    "mamba_ssm.ops.selective_scan_interface": {
        "selective_scan_fn": (
            "u, delta, A, B, C, D=None, z=None, delta_bias=None, delta_softplus=False, "
            "return_last_state=False"
        ),
        "selective_scan_ref": (
            "u, delta, A, B, C, D=None, z=None, delta_bias=None, delta_softplus=False, "
            "return_last_state=False"
        ),
        "mamba_inner_fn": (
            "xz, conv1d_weight, conv1d_bias, x_proj_weight, delta_proj_weight, "
            "out_proj_weight, out_proj_bias, A, B=None, C=None, D=None, delta_bias=None, "
            "B_proj_bias=None, C_proj_bias=None, delta_softplus=True, checkpoint_lvl=1, "
            "b_rms_weight=None, c_rms_weight=None, dt_rms_weight=None, b_c_dt_rms_eps=1e-06"
        ),
        "mamba_inner_ref": (
            "xz, conv1d_weight, conv1d_bias, x_proj_weight, delta_proj_weight, "
            "out_proj_weight, out_proj_bias, A, B=None, C=None, D=None, delta_bias=None, "
            "B_proj_bias=None, C_proj_bias=None, delta_softplus=True"
        ),
    },
    "mamba_ssm.ops.triton.selective_state_update": {
        "selective_state_update_ref": (
            "state, x, dt, A, B, C, D=None, z=None, dt_bias=None, dt_softplus=False"
        ),
        "selective_state_update": (
            "state, x, dt, A, B, C, D=None, z=None, dt_bias=None, dt_softplus=False, "
            "state_batch_indices=None"
        ),
    },
    "mamba_ssm.ops.triton.ssd_combined": {
        "mamba_chunk_scan_combined": (
            "x, dt, A, B, C, chunk_size, D=None, z=None, dt_bias=None, initial_states=None, "
            "seq_idx=None, cu_seqlens=None, dt_softplus=False, dt_limit=(0.0, inf), "
            "return_final_states=False, return_varlen_states=False"
        ),
        "mamba_split_conv1d_scan_combined": (
            "zxbcdt, conv1d_weight, conv1d_bias, dt_bias, A, D, chunk_size, "
            "initial_states=None, seq_idx=None, dt_limit=(0.0, inf), "
            "return_final_states=False, activation='silu', rmsnorm_weight=None, "
            "rmsnorm_eps=1e-06, outproj_weight=None, outproj_bias=None, headdim=None, "
            "ngroups=1, norm_before_gate=True"
        ),
    },
    "mamba_ssm.ops.triton.layernorm_gated": {
        "layernorm_fn": (
            "x, weight, bias, z=None, eps=1e-06, group_size=None, norm_before_gate=True, "
            "is_rms_norm=False"
        ),
        "rmsnorm_fn": (
            "x, weight, bias, z=None, eps=1e-06, group_size=None, norm_before_gate=True"
        ),
        "rms_norm_ref": (
            "x, weight, bias, z=None, eps=1e-06, group_size=None, norm_before_gate=True, "
            "upcast=True"
        ),
        "LayerNorm.__init__": (
            "hidden_size, eps=1e-05, group_size=None, norm_before_gate=True, device=None, "
            "dtype=None"
        ),
        "LayerNorm.forward": "x, z=None",
        "RMSNorm.__init__": (
            "hidden_size, eps=1e-05, group_size=None, norm_before_gate=True, device=None, "
            "dtype=None"
        ),
        "RMSNorm.forward": "x, z=None",
    },
    "mamba_ssm.ops.triton.layer_norm": {
        "layer_norm_fn": (
            "x, weight, bias, residual=None, x1=None, weight1=None, bias1=None, eps=1e-06, "
            "dropout_p=0.0, rowscale=None, prenorm=False, residual_in_fp32=False, "
            "is_rms_norm=False, return_dropout_mask=False"
        ),
        "rms_norm_fn": (
            "x, weight, bias, residual=None, x1=None, weight1=None, bias1=None, eps=1e-06, "
            "dropout_p=0.0, rowscale=None, prenorm=False, residual_in_fp32=False, "
            "return_dropout_mask=False"
        ),
        "layer_norm_ref": (
            "x, weight, bias, residual=None, x1=None, weight1=None, bias1=None, eps=1e-06, "
            "dropout_p=0.0, rowscale=None, prenorm=False, dropout_mask=None, "
            "dropout_mask1=None, upcast=False"
        ),
        "rms_norm_ref": (
            "x, weight, bias, residual=None, x1=None, weight1=None, bias1=None, eps=1e-06, "
            "dropout_p=0.0, rowscale=None, prenorm=False, dropout_mask=None, "
            "dropout_mask1=None, upcast=False"
        ),
        "layer_norm_linear_fn": (
            "x, norm_weight, norm_bias, linear_weight, linear_bias, residual=None, eps=1e-06, "
            "prenorm=False, residual_in_fp32=False, is_rms_norm=False"
        ),
        "RMSNorm.__init__": "hidden_size, eps=1e-05, dropout_p=0.0, device=None, dtype=None",
        "RMSNorm.forward": "x, residual=None, prenorm=False, residual_in_fp32=False",
    },
    "mamba_ssm.modules.mamba_simple": {
        "Mamba.__init__": (
            "d_model, d_state=16, d_conv=4, expand=2, dt_rank='auto', dt_min=0.001, "
            "dt_max=0.1, dt_init='random', dt_scale=1.0, dt_init_floor=0.0001, "
            "conv_bias=True, bias=False, use_fast_path=True, layer_idx=None, device=None, "
            "dtype=None"
        ),
        "Mamba.forward": "hidden_states, inference_params=None",
        "Mamba.step": "hidden_states, conv_state, ssm_state",
        "Mamba.allocate_inference_cache": "batch_size, max_seqlen, dtype=None, **kwargs",
    },
    "mamba_ssm.modules.mamba2": {
        "Mamba2.__init__": (
            "d_model, d_state=128, d_conv=4, conv_init=None, expand=2, headdim=64, "
            "d_ssm=None, ngroups=1, A_init_range=(1, 16), D_has_hdim=False, rmsnorm=True, "
            "norm_before_gate=False, dt_min=0.001, dt_max=0.1, dt_init_floor=0.0001, "
            "dt_limit=(0.0, inf), bias=False, conv_bias=True, chunk_size=256, "
            "use_mem_eff_path=True, layer_idx=None, process_group=None, "
            "sequence_parallel=True, device=None, dtype=None"
        ),
        "Mamba2.forward": "u, seqlen=None, seq_idx=None, cu_seqlens=None, inference_params=None",
        "Mamba2.step": "hidden_states, conv_state, ssm_state",
        "Mamba2.allocate_inference_cache": "batch_size, max_seqlen, dtype=None, **kwargs",
    },
    "mamba_ssm.modules.mamba3": {
        "Mamba3.__init__": (
            "d_model, d_state=128, expand=2, headdim=64, ngroups=1, rope_fraction=0.5, "
            "dt_min=0.001, dt_max=0.1, dt_init_floor=0.0001, A_floor=0.0001, "
            "is_outproj_norm=False, is_mimo=False, mimo_rank=4, "
            "fuse_pregate_headwise_norm=True, chunk_size=64, dropout=0.0, layer_idx=None, "
            "n_layer=None, device=None, dtype=None, **kwargs"
        ),
        "Mamba3.forward": "u, seq_idx=None, cu_seqlens=None, inference_params=None",
        "Mamba3.step": "u, angle_state, ssm_state, k_state, v_state, **kwargs",
        "Mamba3.allocate_inference_cache": (
            "batch_size, max_seqlen, device=None, dtype=None, inplace_state=None, **kwargs"
        ),
        "heavy_tail_activation": "x",
    },
    "mamba_ssm.ops.triton.mamba3.mamba3_siso_combined": {
        "mamba3_siso_combined": (
            "Q, K, V, ADT, DT, Trap, Q_bias, K_bias, Angles, D=None, Z=None, Input_States=None, "
            "chunk_size=64, return_final_states=False, cu_seqlens=None"
        ),
    },
    "mamba_ssm.ops.triton.mamba3.mamba3_siso_step": {
        "mamba3_siso_step": (
            "Q, K, V, ADT, DT, Trap, Q_bias, K_bias, Angles, D=None, Z=None, Input_States=None"
        ),
    },
    "mamba_ssm.ops.triton.mamba3.mamba3_mimo_rotary_step": {
        "apply_rotary_qk_inference_fwd": (
            "q, k, angle_state, angle_proj, dt, bias_q=None, bias_k=None, inplace=False, "
            "conjugate=False, rotate_pairwise=True"
        ),
    },
    "mamba_ssm.ops.tilelang.mamba3.mamba3_mimo": {
        "mamba3_mimo": (
            "Q, K, V, ADT, DT, Trap, Q_bias, K_bias, MIMO_V, MIMO_Z, MIMO_Out, Angles, D, Z, "
            "chunk_size, rotary_dim_divisor, dtype, return_state=False, cu_seqlens=None, "
            "fuse_pregate_headwise_rms_norm=False, outproj_norm_weight=None, "
            "outproj_norm_eps=1e-05"
        ),
    },
    "mamba_ssm.ops.cute.mamba3.mamba3_step_fn": {
        "mamba3_step_fn": (
            "state, Bstate, Xstate, A, B, C, D, x, dt, trap, xproj, outproj=None, "
            "state_out=None, out=None, z=None, zproj=None, tile_D=64, num_warps=2"
        ),
    },
    "mamba_ssm.modules.block": {
        "Block.__init__": (
            "dim, mixer_cls, mlp_cls, norm_cls=LayerNorm, fused_add_norm=False, "
            "residual_in_fp32=False"
        ),
        "Block.forward": "hidden_states, residual=None, inference_params=None, **mixer_kwargs",
        "Block.allocate_inference_cache": "batch_size, max_seqlen, dtype=None, **kwargs",
    },
    "mamba_ssm.modules.mlp": {
        "GatedMLP.__init__": (
            "in_features, hidden_features=None, out_features=None, activation=silu, "
            "bias=False, multiple_of=128, device=None, dtype=None"
        ),
        "GatedMLP.forward": "x",
    },
    "mamba_ssm.models.mixer_seq_simple": {
        "create_block": (
            "d_model, d_intermediate, ssm_cfg=None, attn_layer_idx=None, attn_cfg=None, "
            "norm_epsilon=1e-05, rms_norm=False, residual_in_fp32=False, "
            "fused_add_norm=False, layer_idx=None, device=None, dtype=None"
        ),
        "MixerModel.__init__": (
            "d_model, n_layer, d_intermediate, vocab_size, ssm_cfg=None, attn_layer_idx=None, "
            "attn_cfg=None, norm_epsilon=1e-05, rms_norm=False, initializer_cfg=None, "
            "fused_add_norm=False, residual_in_fp32=False, device=None, dtype=None"
        ),
        "MixerModel.forward": "input_ids, inference_params=None, **mixer_kwargs",
        "MambaLMHeadModel.__init__": "config, initializer_cfg=None, device=None, dtype=None",
        "MambaLMHeadModel.forward": (
            "input_ids, position_ids=None, inference_params=None, num_last_tokens=0, **mixer_kwargs"
        ),
        "MambaLMHeadModel.from_pretrained": (
            "pretrained_model_name, device=None, dtype=None, **kwargs"
        ),
        "MambaLMHeadModel.save_pretrained": "save_directory",
    },
    "mamba_ssm.utils.generation": {
        "sample": "logits, top_k=1, top_p=0.0, min_p=0.0, temperature=1.0",
        "decode": (
            "input_ids, model, max_length, top_k=1, top_p=0.0, min_p=0.0, temperature=1.0, "
            "repetition_penalty=1.0, eos_token_id=None, teacher_outputs=None, "
            "vocab_size=None, cg=False, enable_timing=False, output_scores=False, "
            "streamer=None"
        ),
        "GenerationMixin.generate": (
            "input_ids, max_length, top_k=1, top_p=0.0, min_p=0.0, temperature=1.0, "
            "return_dict_in_generate=False, output_scores=False, **kwargs"
        ),
        "InferenceParams.reset": "max_seqlen, max_batch_size",
    },
    "mamba_ssm.utils.hf": {
        "load_config_hf": "model_name",
        "load_state_dict_hf": "model_name, device=None, dtype=None",
    },
    "causal_conv1d.causal_conv1d_interface": {
        "causal_conv1d_fn": (
            "x, weight, bias=None, seq_idx=None, initial_states=None, "
            "return_final_states=False, final_states_out=None, activation=None"
        ),
        "causal_conv1d_ref": (
            "x, weight, bias=None, initial_states=None, return_final_states=False, "
            "final_states_out=None, activation=None"
        ),
        "causal_conv1d_update_ref": (
            "x, conv_state, weight, bias=None, activation=None, cache_seqlens=None"
        ),
        "causal_conv1d_update": (
            "x, conv_state, weight, bias=None, activation=None, cache_seqlens=None, "
            "conv_state_indices=None"
        ),
    },
    "causal_conv1d.causal_conv1d_varlen": {
        "causal_conv1d_varlen_states": "x, cu_seqlens, state_len",
        "causal_conv1d_varlen_states_ref": "x, cu_seqlens, state_len",
    },
}
