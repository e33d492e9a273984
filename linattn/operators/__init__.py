"""The operators: a docstring and one call each."""

#: By module: its functions, which the package imports when one of them is first used, since making
#: all docstrings takes as long as importing everything else.
FUNCTIONS = {
    "attention": "causal causal_backward noncausal noncausal_backward step",
    "conv": "causal_conv1d causal_conv1d_backward causal_conv1d_step",
    "decay": "log_decay log_decay_backward",
    "delta": "delta delta_backward delta_step",
    "dplr": "dplr dplr_backward dplr_step",
    "fused": "fused_gated_delta_step fused_gated_step",
    "gated": "gated gated_backward gated_step",
    "gated_delta": "gated_delta gated_delta_backward gated_delta_step",
    "linear_scan": "linear_scan linear_scan_backward linear_scan_step",
    "linformer": "linformer linformer_backward",
    "mlstm": "mlstm mlstm_backward mlstm_step",
    "momentum": "momentum_delta momentum_delta_backward momentum_delta_step",
    "selective_scan": "selective_scan selective_scan_backward selective_scan_step",
    "slstm": "slstm slstm_backward slstm_step",
    "softmax": "softmax_attention softmax_attention_backward",
    "ssd": "ssd ssd_backward ssd_step",
    "streaming": "blocks stream",
    "wkv": "wkv wkv_backward wkv_step",
}
