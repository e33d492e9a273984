"""The signatures of flashrnn 1.0.8 and mlstm_kernels 2.0.6, without arguments that tune kernels."""

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

#: By module and name.
SIGNATURES = {
    "flashrnn": {
        "flashrnn": (
            "Wx, R, b, states=None, function='lstm', config=None, backend='cuda_fused', "
            "dtype='bfloat16'"
        ),
        "FlashRNNConfig": (
            "backend='cuda_fused', function='lstm', gradient_recurrent_cut=False, "
            "gradient_recurrent_clipval=None, forward_clipval=None, constants=None, "
            "simple_agg=True, hidden_dim=-1, num_heads=-1, head_dim=-1, num_states=4, "
            "num_gates_r=4, num_gates_w=4, num_gates_i=4, num_gates_t=4, batch_size=8, "
            "input_shape='BTGHD', output_shape='SBTHD', recurrent_shape='GHDP', bias_shape='GHD'"
        ),
    },
    "mlstm_kernels.torch": {
        "get_available_mlstm_kernels": "",
        "get_available_mlstm_sequence_kernels": "",
        "get_available_mlstm_step_kernels": "",
        "get_mlstm_kernel": "name",
        "get_mlstm_sequence_kernel": "name",
        "get_mlstm_step_kernel": "name",
    },
    "mlstm_kernels.torch.backend_module": {
        "mLSTMBackendConfig": (
            "chunkwise_kernel='chunkwise--native_autograd', "
            "sequence_kernel='native_sequence__native', step_kernel='native', mode='train', "
            "chunk_size=64, return_last_states=True, autocast_kernel_dtype='bfloat16', "
            "eps=1e-06, inference_state_dtype='float32', normalize_siging=True"
        ),
        "mLSTMBackend": "config",
        "mLSTMBackend.forward": f"{_TOKENS}, return_last_states=None, mode=None",
    },
    "mlstm_kernels.torch.kernel_wrappers": {
        "wrap_chunkwise__arbitrary_sequence_length": _WRAPPER,
        "wrap_chunkwise__arbitrary_sequence_length_with_padding": _WRAPPER,
        "wrap_chunkwise__pad_zeros": f"mlstm_chunkwise_kernel, {_WRAPPED.format(False)}",
    },
    "mlstm_kernels.torch.chunkwise": {
        "mlstm_chunkwise__native_autograd": _CHUNKS,
        "mlstm_chunkwise__native_custbw": _CHUNKS,
        "mlstm_chunkwise__limit_chunk": _CHUNKS,
        "mlstm_chunkwise__xl_chunk": _SEQUENCE,
        "mlstm_siging_chunkwise__xl_chunk": f"{_SEQUENCE}, normalize=True, chunk_size=128",
    },
    "mlstm_kernels.torch.parallel": {
        "mlstm_parallel__native_autograd": _SEQUENCE,
        "mlstm_parallel__native_stablef_custbw": _SEQUENCE,
        "mlstm_parallel__limit_headdim": _SEQUENCE,
        "mlstm_siging_parallel__native_autograd": (
            f"{_SEQUENCE}, stable_fgate=True, normalize=True"
        ),
    },
    "mlstm_kernels.torch.recurrent": {
        "mlstm_recurrent_step__native": _STEP,
        "mlstm_recurrent_step__triton": _STEP,
        "mlstm_recurrent_sequence__native_fw": f"{_SEQUENCE}, dtype_state=torch.float32",
        "mlstm_recurrent_sequence__triton_step_fused_fw": f"{_SEQUENCE}, dtype_state=torch.float32",
    },
    "mlstm_kernels.torch.chunkwise.native": {"mlstm_chunkwise__native_autograd": _CHUNKS},
    "mlstm_kernels.torch.chunkwise.triton_limit_chunk": {"mlstm_chunkwise__limit_chunk": _CHUNKS},
    "mlstm_kernels.torch.chunkwise.triton_xl_chunk": {"mlstm_chunkwise__xl_chunk": _SEQUENCE},
    "mlstm_kernels.torch.parallel.native_siging": {
        "mlstm_siging_parallel__native_custbw": f"{_SEQUENCE}, stable_fgate=True, normalize=True"
    },
    "mlstm_kernels.torch.parallel.triton_limit_headdim": {
        "mlstm_parallel__limit_headdim": _SEQUENCE
    },
    "mlstm_kernels.torch.recurrent.native_step": {"mlstm_recurrent_step__native": _STEP},
    "mlstm_kernels.torch.recurrent.triton_step": {"mlstm_recurrent_step__triton": _STEP},
}
