# Written by tools/ufuncs_stub.py.
from typing import Final

import numpy as np

__all__ = [
    "causal_backward_elu",
    "causal_backward_elu_sum",
    "causal_backward_exp",
    "causal_backward_exp_sum",
    "causal_backward_identity",
    "causal_backward_identity_sum",
    "causal_backward_l2norm",
    "causal_backward_l2norm_sum",
    "causal_backward_relu",
    "causal_backward_relu_sum",
    "causal_backward_softplus",
    "causal_backward_softplus_sum",
    "causal_conv1d",
    "causal_conv1d_backward",
    "causal_conv1d_state",
    "causal_conv1d_state_backward",
    "causal_conv1d_step",
    "causal_elu",
    "causal_elu_sum",
    "causal_exp",
    "causal_exp_sum",
    "causal_identity",
    "causal_identity_sum",
    "causal_l2norm",
    "causal_l2norm_sum",
    "causal_relu",
    "causal_relu_sum",
    "causal_softplus",
    "causal_softplus_sum",
    "causal_state_backward_elu",
    "causal_state_backward_elu_sum",
    "causal_state_backward_exp",
    "causal_state_backward_exp_sum",
    "causal_state_backward_identity",
    "causal_state_backward_identity_sum",
    "causal_state_backward_l2norm",
    "causal_state_backward_l2norm_sum",
    "causal_state_backward_relu",
    "causal_state_backward_relu_sum",
    "causal_state_backward_softplus",
    "causal_state_backward_softplus_sum",
    "causal_state_elu",
    "causal_state_elu_sum",
    "causal_state_exp",
    "causal_state_exp_sum",
    "causal_state_identity",
    "causal_state_identity_sum",
    "causal_state_l2norm",
    "causal_state_l2norm_sum",
    "causal_state_relu",
    "causal_state_relu_sum",
    "causal_state_softplus",
    "causal_state_softplus_sum",
    "delta_backward_elu",
    "delta_backward_exp",
    "delta_backward_identity",
    "delta_backward_l2norm",
    "delta_backward_relu",
    "delta_backward_softplus",
    "delta_channels_backward_elu",
    "delta_channels_backward_exp",
    "delta_channels_backward_identity",
    "delta_channels_backward_l2norm",
    "delta_channels_backward_relu",
    "delta_channels_backward_softplus",
    "delta_channels_elu",
    "delta_channels_exp",
    "delta_channels_identity",
    "delta_channels_l2norm",
    "delta_channels_relu",
    "delta_channels_softplus",
    "delta_channels_state_backward_elu",
    "delta_channels_state_backward_exp",
    "delta_channels_state_backward_identity",
    "delta_channels_state_backward_l2norm",
    "delta_channels_state_backward_relu",
    "delta_channels_state_backward_softplus",
    "delta_channels_state_elu",
    "delta_channels_state_exp",
    "delta_channels_state_identity",
    "delta_channels_state_l2norm",
    "delta_channels_state_relu",
    "delta_channels_state_softplus",
    "delta_channels_step_elu",
    "delta_channels_step_exp",
    "delta_channels_step_identity",
    "delta_channels_step_l2norm",
    "delta_channels_step_relu",
    "delta_channels_step_softplus",
    "delta_elu",
    "delta_exp",
    "delta_identity",
    "delta_l2norm",
    "delta_relu",
    "delta_softplus",
    "delta_state_backward_elu",
    "delta_state_backward_exp",
    "delta_state_backward_identity",
    "delta_state_backward_l2norm",
    "delta_state_backward_relu",
    "delta_state_backward_softplus",
    "delta_state_elu",
    "delta_state_exp",
    "delta_state_identity",
    "delta_state_l2norm",
    "delta_state_relu",
    "delta_state_softplus",
    "delta_step_elu",
    "delta_step_exp",
    "delta_step_identity",
    "delta_step_l2norm",
    "delta_step_relu",
    "delta_step_softplus",
    "dplr",
    "dplr_backward",
    "dplr_key_channels",
    "dplr_key_channels_backward",
    "dplr_key_channels_state",
    "dplr_key_channels_state_backward",
    "dplr_key_channels_step",
    "dplr_state",
    "dplr_state_backward",
    "dplr_step",
    "gated_backward_elu",
    "gated_backward_exp",
    "gated_backward_identity",
    "gated_backward_l2norm",
    "gated_backward_relu",
    "gated_backward_softplus",
    "gated_bonus_backward_elu",
    "gated_bonus_backward_exp",
    "gated_bonus_backward_identity",
    "gated_bonus_backward_l2norm",
    "gated_bonus_backward_relu",
    "gated_bonus_backward_softplus",
    "gated_bonus_elu",
    "gated_bonus_exp",
    "gated_bonus_identity",
    "gated_bonus_l2norm",
    "gated_bonus_relu",
    "gated_bonus_softplus",
    "gated_bonus_state_backward_elu",
    "gated_bonus_state_backward_exp",
    "gated_bonus_state_backward_identity",
    "gated_bonus_state_backward_l2norm",
    "gated_bonus_state_backward_relu",
    "gated_bonus_state_backward_softplus",
    "gated_bonus_state_elu",
    "gated_bonus_state_exp",
    "gated_bonus_state_identity",
    "gated_bonus_state_l2norm",
    "gated_bonus_state_relu",
    "gated_bonus_state_softplus",
    "gated_bonus_step_elu",
    "gated_bonus_step_exp",
    "gated_bonus_step_identity",
    "gated_bonus_step_l2norm",
    "gated_bonus_step_relu",
    "gated_bonus_step_softplus",
    "gated_delta_backward_elu",
    "gated_delta_backward_exp",
    "gated_delta_backward_identity",
    "gated_delta_backward_l2norm",
    "gated_delta_backward_relu",
    "gated_delta_backward_softplus",
    "gated_delta_channels_backward_elu",
    "gated_delta_channels_backward_exp",
    "gated_delta_channels_backward_identity",
    "gated_delta_channels_backward_l2norm",
    "gated_delta_channels_backward_relu",
    "gated_delta_channels_backward_softplus",
    "gated_delta_channels_elu",
    "gated_delta_channels_erase_backward_elu",
    "gated_delta_channels_erase_backward_exp",
    "gated_delta_channels_erase_backward_identity",
    "gated_delta_channels_erase_backward_l2norm",
    "gated_delta_channels_erase_backward_relu",
    "gated_delta_channels_erase_backward_softplus",
    "gated_delta_channels_erase_elu",
    "gated_delta_channels_erase_exp",
    "gated_delta_channels_erase_identity",
    "gated_delta_channels_erase_l2norm",
    "gated_delta_channels_erase_relu",
    "gated_delta_channels_erase_softplus",
    "gated_delta_channels_erase_state_backward_elu",
    "gated_delta_channels_erase_state_backward_exp",
    "gated_delta_channels_erase_state_backward_identity",
    "gated_delta_channels_erase_state_backward_l2norm",
    "gated_delta_channels_erase_state_backward_relu",
    "gated_delta_channels_erase_state_backward_softplus",
    "gated_delta_channels_erase_state_elu",
    "gated_delta_channels_erase_state_exp",
    "gated_delta_channels_erase_state_identity",
    "gated_delta_channels_erase_state_l2norm",
    "gated_delta_channels_erase_state_relu",
    "gated_delta_channels_erase_state_softplus",
    "gated_delta_channels_erase_step_elu",
    "gated_delta_channels_erase_step_exp",
    "gated_delta_channels_erase_step_identity",
    "gated_delta_channels_erase_step_l2norm",
    "gated_delta_channels_erase_step_relu",
    "gated_delta_channels_erase_step_softplus",
    "gated_delta_channels_exp",
    "gated_delta_channels_identity",
    "gated_delta_channels_l2norm",
    "gated_delta_channels_relu",
    "gated_delta_channels_softplus",
    "gated_delta_channels_state_backward_elu",
    "gated_delta_channels_state_backward_exp",
    "gated_delta_channels_state_backward_identity",
    "gated_delta_channels_state_backward_l2norm",
    "gated_delta_channels_state_backward_relu",
    "gated_delta_channels_state_backward_softplus",
    "gated_delta_channels_state_elu",
    "gated_delta_channels_state_exp",
    "gated_delta_channels_state_identity",
    "gated_delta_channels_state_l2norm",
    "gated_delta_channels_state_relu",
    "gated_delta_channels_state_softplus",
    "gated_delta_channels_step_elu",
    "gated_delta_channels_step_exp",
    "gated_delta_channels_step_identity",
    "gated_delta_channels_step_l2norm",
    "gated_delta_channels_step_relu",
    "gated_delta_channels_step_softplus",
    "gated_delta_elu",
    "gated_delta_erase_backward_elu",
    "gated_delta_erase_backward_exp",
    "gated_delta_erase_backward_identity",
    "gated_delta_erase_backward_l2norm",
    "gated_delta_erase_backward_relu",
    "gated_delta_erase_backward_softplus",
    "gated_delta_erase_elu",
    "gated_delta_erase_exp",
    "gated_delta_erase_identity",
    "gated_delta_erase_l2norm",
    "gated_delta_erase_relu",
    "gated_delta_erase_softplus",
    "gated_delta_erase_state_backward_elu",
    "gated_delta_erase_state_backward_exp",
    "gated_delta_erase_state_backward_identity",
    "gated_delta_erase_state_backward_l2norm",
    "gated_delta_erase_state_backward_relu",
    "gated_delta_erase_state_backward_softplus",
    "gated_delta_erase_state_elu",
    "gated_delta_erase_state_exp",
    "gated_delta_erase_state_identity",
    "gated_delta_erase_state_l2norm",
    "gated_delta_erase_state_relu",
    "gated_delta_erase_state_softplus",
    "gated_delta_erase_step_elu",
    "gated_delta_erase_step_exp",
    "gated_delta_erase_step_identity",
    "gated_delta_erase_step_l2norm",
    "gated_delta_erase_step_relu",
    "gated_delta_erase_step_softplus",
    "gated_delta_exp",
    "gated_delta_identity",
    "gated_delta_key_channels_backward_elu",
    "gated_delta_key_channels_backward_exp",
    "gated_delta_key_channels_backward_identity",
    "gated_delta_key_channels_backward_l2norm",
    "gated_delta_key_channels_backward_relu",
    "gated_delta_key_channels_backward_softplus",
    "gated_delta_key_channels_channels_backward_elu",
    "gated_delta_key_channels_channels_backward_exp",
    "gated_delta_key_channels_channels_backward_identity",
    "gated_delta_key_channels_channels_backward_l2norm",
    "gated_delta_key_channels_channels_backward_relu",
    "gated_delta_key_channels_channels_backward_softplus",
    "gated_delta_key_channels_channels_elu",
    "gated_delta_key_channels_channels_erase_backward_elu",
    "gated_delta_key_channels_channels_erase_backward_exp",
    "gated_delta_key_channels_channels_erase_backward_identity",
    "gated_delta_key_channels_channels_erase_backward_l2norm",
    "gated_delta_key_channels_channels_erase_backward_relu",
    "gated_delta_key_channels_channels_erase_backward_softplus",
    "gated_delta_key_channels_channels_erase_elu",
    "gated_delta_key_channels_channels_erase_exp",
    "gated_delta_key_channels_channels_erase_identity",
    "gated_delta_key_channels_channels_erase_l2norm",
    "gated_delta_key_channels_channels_erase_relu",
    "gated_delta_key_channels_channels_erase_softplus",
    "gated_delta_key_channels_channels_erase_state_backward_elu",
    "gated_delta_key_channels_channels_erase_state_backward_exp",
    "gated_delta_key_channels_channels_erase_state_backward_identity",
    "gated_delta_key_channels_channels_erase_state_backward_l2norm",
    "gated_delta_key_channels_channels_erase_state_backward_relu",
    "gated_delta_key_channels_channels_erase_state_backward_softplus",
    "gated_delta_key_channels_channels_erase_state_elu",
    "gated_delta_key_channels_channels_erase_state_exp",
    "gated_delta_key_channels_channels_erase_state_identity",
    "gated_delta_key_channels_channels_erase_state_l2norm",
    "gated_delta_key_channels_channels_erase_state_relu",
    "gated_delta_key_channels_channels_erase_state_softplus",
    "gated_delta_key_channels_channels_erase_step_elu",
    "gated_delta_key_channels_channels_erase_step_exp",
    "gated_delta_key_channels_channels_erase_step_identity",
    "gated_delta_key_channels_channels_erase_step_l2norm",
    "gated_delta_key_channels_channels_erase_step_relu",
    "gated_delta_key_channels_channels_erase_step_softplus",
    "gated_delta_key_channels_channels_exp",
    "gated_delta_key_channels_channels_identity",
    "gated_delta_key_channels_channels_l2norm",
    "gated_delta_key_channels_channels_relu",
    "gated_delta_key_channels_channels_softplus",
    "gated_delta_key_channels_channels_state_backward_elu",
    "gated_delta_key_channels_channels_state_backward_exp",
    "gated_delta_key_channels_channels_state_backward_identity",
    "gated_delta_key_channels_channels_state_backward_l2norm",
    "gated_delta_key_channels_channels_state_backward_relu",
    "gated_delta_key_channels_channels_state_backward_softplus",
    "gated_delta_key_channels_channels_state_elu",
    "gated_delta_key_channels_channels_state_exp",
    "gated_delta_key_channels_channels_state_identity",
    "gated_delta_key_channels_channels_state_l2norm",
    "gated_delta_key_channels_channels_state_relu",
    "gated_delta_key_channels_channels_state_softplus",
    "gated_delta_key_channels_channels_step_elu",
    "gated_delta_key_channels_channels_step_exp",
    "gated_delta_key_channels_channels_step_identity",
    "gated_delta_key_channels_channels_step_l2norm",
    "gated_delta_key_channels_channels_step_relu",
    "gated_delta_key_channels_channels_step_softplus",
    "gated_delta_key_channels_elu",
    "gated_delta_key_channels_erase_backward_elu",
    "gated_delta_key_channels_erase_backward_exp",
    "gated_delta_key_channels_erase_backward_identity",
    "gated_delta_key_channels_erase_backward_l2norm",
    "gated_delta_key_channels_erase_backward_relu",
    "gated_delta_key_channels_erase_backward_softplus",
    "gated_delta_key_channels_erase_elu",
    "gated_delta_key_channels_erase_exp",
    "gated_delta_key_channels_erase_identity",
    "gated_delta_key_channels_erase_l2norm",
    "gated_delta_key_channels_erase_relu",
    "gated_delta_key_channels_erase_softplus",
    "gated_delta_key_channels_erase_state_backward_elu",
    "gated_delta_key_channels_erase_state_backward_exp",
    "gated_delta_key_channels_erase_state_backward_identity",
    "gated_delta_key_channels_erase_state_backward_l2norm",
    "gated_delta_key_channels_erase_state_backward_relu",
    "gated_delta_key_channels_erase_state_backward_softplus",
    "gated_delta_key_channels_erase_state_elu",
    "gated_delta_key_channels_erase_state_exp",
    "gated_delta_key_channels_erase_state_identity",
    "gated_delta_key_channels_erase_state_l2norm",
    "gated_delta_key_channels_erase_state_relu",
    "gated_delta_key_channels_erase_state_softplus",
    "gated_delta_key_channels_erase_step_elu",
    "gated_delta_key_channels_erase_step_exp",
    "gated_delta_key_channels_erase_step_identity",
    "gated_delta_key_channels_erase_step_l2norm",
    "gated_delta_key_channels_erase_step_relu",
    "gated_delta_key_channels_erase_step_softplus",
    "gated_delta_key_channels_exp",
    "gated_delta_key_channels_identity",
    "gated_delta_key_channels_l2norm",
    "gated_delta_key_channels_relu",
    "gated_delta_key_channels_softplus",
    "gated_delta_key_channels_state_backward_elu",
    "gated_delta_key_channels_state_backward_exp",
    "gated_delta_key_channels_state_backward_identity",
    "gated_delta_key_channels_state_backward_l2norm",
    "gated_delta_key_channels_state_backward_relu",
    "gated_delta_key_channels_state_backward_softplus",
    "gated_delta_key_channels_state_elu",
    "gated_delta_key_channels_state_exp",
    "gated_delta_key_channels_state_identity",
    "gated_delta_key_channels_state_l2norm",
    "gated_delta_key_channels_state_relu",
    "gated_delta_key_channels_state_softplus",
    "gated_delta_key_channels_step_elu",
    "gated_delta_key_channels_step_exp",
    "gated_delta_key_channels_step_identity",
    "gated_delta_key_channels_step_l2norm",
    "gated_delta_key_channels_step_relu",
    "gated_delta_key_channels_step_softplus",
    "gated_delta_l2norm",
    "gated_delta_relu",
    "gated_delta_softplus",
    "gated_delta_state_backward_elu",
    "gated_delta_state_backward_exp",
    "gated_delta_state_backward_identity",
    "gated_delta_state_backward_l2norm",
    "gated_delta_state_backward_relu",
    "gated_delta_state_backward_softplus",
    "gated_delta_state_elu",
    "gated_delta_state_exp",
    "gated_delta_state_identity",
    "gated_delta_state_l2norm",
    "gated_delta_state_relu",
    "gated_delta_state_softplus",
    "gated_delta_step_elu",
    "gated_delta_step_exp",
    "gated_delta_step_identity",
    "gated_delta_step_l2norm",
    "gated_delta_step_relu",
    "gated_delta_step_softplus",
    "gated_elu",
    "gated_exp",
    "gated_identity",
    "gated_key_channels_backward_elu",
    "gated_key_channels_backward_exp",
    "gated_key_channels_backward_identity",
    "gated_key_channels_backward_l2norm",
    "gated_key_channels_backward_relu",
    "gated_key_channels_backward_softplus",
    "gated_key_channels_bonus_backward_elu",
    "gated_key_channels_bonus_backward_exp",
    "gated_key_channels_bonus_backward_identity",
    "gated_key_channels_bonus_backward_l2norm",
    "gated_key_channels_bonus_backward_relu",
    "gated_key_channels_bonus_backward_softplus",
    "gated_key_channels_bonus_elu",
    "gated_key_channels_bonus_exp",
    "gated_key_channels_bonus_identity",
    "gated_key_channels_bonus_l2norm",
    "gated_key_channels_bonus_relu",
    "gated_key_channels_bonus_softplus",
    "gated_key_channels_bonus_state_backward_elu",
    "gated_key_channels_bonus_state_backward_exp",
    "gated_key_channels_bonus_state_backward_identity",
    "gated_key_channels_bonus_state_backward_l2norm",
    "gated_key_channels_bonus_state_backward_relu",
    "gated_key_channels_bonus_state_backward_softplus",
    "gated_key_channels_bonus_state_elu",
    "gated_key_channels_bonus_state_exp",
    "gated_key_channels_bonus_state_identity",
    "gated_key_channels_bonus_state_l2norm",
    "gated_key_channels_bonus_state_relu",
    "gated_key_channels_bonus_state_softplus",
    "gated_key_channels_bonus_step_elu",
    "gated_key_channels_bonus_step_exp",
    "gated_key_channels_bonus_step_identity",
    "gated_key_channels_bonus_step_l2norm",
    "gated_key_channels_bonus_step_relu",
    "gated_key_channels_bonus_step_softplus",
    "gated_key_channels_elu",
    "gated_key_channels_exp",
    "gated_key_channels_identity",
    "gated_key_channels_l2norm",
    "gated_key_channels_relu",
    "gated_key_channels_softplus",
    "gated_key_channels_state_backward_elu",
    "gated_key_channels_state_backward_exp",
    "gated_key_channels_state_backward_identity",
    "gated_key_channels_state_backward_l2norm",
    "gated_key_channels_state_backward_relu",
    "gated_key_channels_state_backward_softplus",
    "gated_key_channels_state_elu",
    "gated_key_channels_state_exp",
    "gated_key_channels_state_identity",
    "gated_key_channels_state_l2norm",
    "gated_key_channels_state_relu",
    "gated_key_channels_state_softplus",
    "gated_key_channels_step_elu",
    "gated_key_channels_step_exp",
    "gated_key_channels_step_identity",
    "gated_key_channels_step_l2norm",
    "gated_key_channels_step_relu",
    "gated_key_channels_step_softplus",
    "gated_l2norm",
    "gated_relu",
    "gated_softplus",
    "gated_state_backward_elu",
    "gated_state_backward_exp",
    "gated_state_backward_identity",
    "gated_state_backward_l2norm",
    "gated_state_backward_relu",
    "gated_state_backward_softplus",
    "gated_state_elu",
    "gated_state_exp",
    "gated_state_identity",
    "gated_state_l2norm",
    "gated_state_relu",
    "gated_state_softplus",
    "gated_step_elu",
    "gated_step_exp",
    "gated_step_identity",
    "gated_step_l2norm",
    "gated_step_relu",
    "gated_step_softplus",
    "noncausal_backward_elu",
    "noncausal_backward_elu_sum",
    "noncausal_backward_exp",
    "noncausal_backward_exp_sum",
    "noncausal_backward_identity",
    "noncausal_backward_identity_sum",
    "noncausal_backward_l2norm",
    "noncausal_backward_l2norm_sum",
    "noncausal_backward_relu",
    "noncausal_backward_relu_sum",
    "noncausal_backward_softplus",
    "noncausal_backward_softplus_sum",
    "noncausal_elu",
    "noncausal_elu_sum",
    "noncausal_exp",
    "noncausal_exp_sum",
    "noncausal_identity",
    "noncausal_identity_sum",
    "noncausal_keys_backward_elu",
    "noncausal_keys_backward_elu_sum",
    "noncausal_keys_backward_exp",
    "noncausal_keys_backward_exp_sum",
    "noncausal_keys_backward_identity",
    "noncausal_keys_backward_identity_sum",
    "noncausal_keys_backward_l2norm",
    "noncausal_keys_backward_l2norm_sum",
    "noncausal_keys_backward_relu",
    "noncausal_keys_backward_relu_sum",
    "noncausal_keys_backward_softplus",
    "noncausal_keys_backward_softplus_sum",
    "noncausal_keys_elu",
    "noncausal_keys_elu_sum",
    "noncausal_keys_exp",
    "noncausal_keys_exp_sum",
    "noncausal_keys_identity",
    "noncausal_keys_identity_sum",
    "noncausal_keys_l2norm",
    "noncausal_keys_l2norm_sum",
    "noncausal_keys_relu",
    "noncausal_keys_relu_sum",
    "noncausal_keys_softplus",
    "noncausal_keys_softplus_sum",
    "noncausal_l2norm",
    "noncausal_l2norm_sum",
    "noncausal_relu",
    "noncausal_relu_sum",
    "noncausal_softplus",
    "noncausal_softplus_sum",
    "state_elu",
    "state_elu_sum",
    "state_exp",
    "state_exp_sum",
    "state_identity",
    "state_identity_sum",
    "state_l2norm",
    "state_l2norm_sum",
    "state_relu",
    "state_relu_sum",
    "state_softplus",
    "state_softplus_sum",
    "step_elu",
    "step_elu_sum",
    "step_exp",
    "step_exp_sum",
    "step_identity",
    "step_identity_sum",
    "step_l2norm",
    "step_l2norm_sum",
    "step_relu",
    "step_relu_sum",
    "step_softplus",
    "step_softplus_sum",
]

causal_backward_elu: Final[np.ufunc]
causal_backward_elu_sum: Final[np.ufunc]
causal_backward_exp: Final[np.ufunc]
causal_backward_exp_sum: Final[np.ufunc]
causal_backward_identity: Final[np.ufunc]
causal_backward_identity_sum: Final[np.ufunc]
causal_backward_l2norm: Final[np.ufunc]
causal_backward_l2norm_sum: Final[np.ufunc]
causal_backward_relu: Final[np.ufunc]
causal_backward_relu_sum: Final[np.ufunc]
causal_backward_softplus: Final[np.ufunc]
causal_backward_softplus_sum: Final[np.ufunc]
causal_conv1d: Final[np.ufunc]
causal_conv1d_backward: Final[np.ufunc]
causal_conv1d_state: Final[np.ufunc]
causal_conv1d_state_backward: Final[np.ufunc]
causal_conv1d_step: Final[np.ufunc]
causal_elu: Final[np.ufunc]
causal_elu_sum: Final[np.ufunc]
causal_exp: Final[np.ufunc]
causal_exp_sum: Final[np.ufunc]
causal_identity: Final[np.ufunc]
causal_identity_sum: Final[np.ufunc]
causal_l2norm: Final[np.ufunc]
causal_l2norm_sum: Final[np.ufunc]
causal_relu: Final[np.ufunc]
causal_relu_sum: Final[np.ufunc]
causal_softplus: Final[np.ufunc]
causal_softplus_sum: Final[np.ufunc]
causal_state_backward_elu: Final[np.ufunc]
causal_state_backward_elu_sum: Final[np.ufunc]
causal_state_backward_exp: Final[np.ufunc]
causal_state_backward_exp_sum: Final[np.ufunc]
causal_state_backward_identity: Final[np.ufunc]
causal_state_backward_identity_sum: Final[np.ufunc]
causal_state_backward_l2norm: Final[np.ufunc]
causal_state_backward_l2norm_sum: Final[np.ufunc]
causal_state_backward_relu: Final[np.ufunc]
causal_state_backward_relu_sum: Final[np.ufunc]
causal_state_backward_softplus: Final[np.ufunc]
causal_state_backward_softplus_sum: Final[np.ufunc]
causal_state_elu: Final[np.ufunc]
causal_state_elu_sum: Final[np.ufunc]
causal_state_exp: Final[np.ufunc]
causal_state_exp_sum: Final[np.ufunc]
causal_state_identity: Final[np.ufunc]
causal_state_identity_sum: Final[np.ufunc]
causal_state_l2norm: Final[np.ufunc]
causal_state_l2norm_sum: Final[np.ufunc]
causal_state_relu: Final[np.ufunc]
causal_state_relu_sum: Final[np.ufunc]
causal_state_softplus: Final[np.ufunc]
causal_state_softplus_sum: Final[np.ufunc]
delta_backward_elu: Final[np.ufunc]
delta_backward_exp: Final[np.ufunc]
delta_backward_identity: Final[np.ufunc]
delta_backward_l2norm: Final[np.ufunc]
delta_backward_relu: Final[np.ufunc]
delta_backward_softplus: Final[np.ufunc]
delta_channels_backward_elu: Final[np.ufunc]
delta_channels_backward_exp: Final[np.ufunc]
delta_channels_backward_identity: Final[np.ufunc]
delta_channels_backward_l2norm: Final[np.ufunc]
delta_channels_backward_relu: Final[np.ufunc]
delta_channels_backward_softplus: Final[np.ufunc]
delta_channels_elu: Final[np.ufunc]
delta_channels_exp: Final[np.ufunc]
delta_channels_identity: Final[np.ufunc]
delta_channels_l2norm: Final[np.ufunc]
delta_channels_relu: Final[np.ufunc]
delta_channels_softplus: Final[np.ufunc]
delta_channels_state_backward_elu: Final[np.ufunc]
delta_channels_state_backward_exp: Final[np.ufunc]
delta_channels_state_backward_identity: Final[np.ufunc]
delta_channels_state_backward_l2norm: Final[np.ufunc]
delta_channels_state_backward_relu: Final[np.ufunc]
delta_channels_state_backward_softplus: Final[np.ufunc]
delta_channels_state_elu: Final[np.ufunc]
delta_channels_state_exp: Final[np.ufunc]
delta_channels_state_identity: Final[np.ufunc]
delta_channels_state_l2norm: Final[np.ufunc]
delta_channels_state_relu: Final[np.ufunc]
delta_channels_state_softplus: Final[np.ufunc]
delta_channels_step_elu: Final[np.ufunc]
delta_channels_step_exp: Final[np.ufunc]
delta_channels_step_identity: Final[np.ufunc]
delta_channels_step_l2norm: Final[np.ufunc]
delta_channels_step_relu: Final[np.ufunc]
delta_channels_step_softplus: Final[np.ufunc]
delta_elu: Final[np.ufunc]
delta_exp: Final[np.ufunc]
delta_identity: Final[np.ufunc]
delta_l2norm: Final[np.ufunc]
delta_relu: Final[np.ufunc]
delta_softplus: Final[np.ufunc]
delta_state_backward_elu: Final[np.ufunc]
delta_state_backward_exp: Final[np.ufunc]
delta_state_backward_identity: Final[np.ufunc]
delta_state_backward_l2norm: Final[np.ufunc]
delta_state_backward_relu: Final[np.ufunc]
delta_state_backward_softplus: Final[np.ufunc]
delta_state_elu: Final[np.ufunc]
delta_state_exp: Final[np.ufunc]
delta_state_identity: Final[np.ufunc]
delta_state_l2norm: Final[np.ufunc]
delta_state_relu: Final[np.ufunc]
delta_state_softplus: Final[np.ufunc]
delta_step_elu: Final[np.ufunc]
delta_step_exp: Final[np.ufunc]
delta_step_identity: Final[np.ufunc]
delta_step_l2norm: Final[np.ufunc]
delta_step_relu: Final[np.ufunc]
delta_step_softplus: Final[np.ufunc]
dplr: Final[np.ufunc]
dplr_backward: Final[np.ufunc]
dplr_key_channels: Final[np.ufunc]
dplr_key_channels_backward: Final[np.ufunc]
dplr_key_channels_state: Final[np.ufunc]
dplr_key_channels_state_backward: Final[np.ufunc]
dplr_key_channels_step: Final[np.ufunc]
dplr_state: Final[np.ufunc]
dplr_state_backward: Final[np.ufunc]
dplr_step: Final[np.ufunc]
gated_backward_elu: Final[np.ufunc]
gated_backward_exp: Final[np.ufunc]
gated_backward_identity: Final[np.ufunc]
gated_backward_l2norm: Final[np.ufunc]
gated_backward_relu: Final[np.ufunc]
gated_backward_softplus: Final[np.ufunc]
gated_bonus_backward_elu: Final[np.ufunc]
gated_bonus_backward_exp: Final[np.ufunc]
gated_bonus_backward_identity: Final[np.ufunc]
gated_bonus_backward_l2norm: Final[np.ufunc]
gated_bonus_backward_relu: Final[np.ufunc]
gated_bonus_backward_softplus: Final[np.ufunc]
gated_bonus_elu: Final[np.ufunc]
gated_bonus_exp: Final[np.ufunc]
gated_bonus_identity: Final[np.ufunc]
gated_bonus_l2norm: Final[np.ufunc]
gated_bonus_relu: Final[np.ufunc]
gated_bonus_softplus: Final[np.ufunc]
gated_bonus_state_backward_elu: Final[np.ufunc]
gated_bonus_state_backward_exp: Final[np.ufunc]
gated_bonus_state_backward_identity: Final[np.ufunc]
gated_bonus_state_backward_l2norm: Final[np.ufunc]
gated_bonus_state_backward_relu: Final[np.ufunc]
gated_bonus_state_backward_softplus: Final[np.ufunc]
gated_bonus_state_elu: Final[np.ufunc]
gated_bonus_state_exp: Final[np.ufunc]
gated_bonus_state_identity: Final[np.ufunc]
gated_bonus_state_l2norm: Final[np.ufunc]
gated_bonus_state_relu: Final[np.ufunc]
gated_bonus_state_softplus: Final[np.ufunc]
gated_bonus_step_elu: Final[np.ufunc]
gated_bonus_step_exp: Final[np.ufunc]
gated_bonus_step_identity: Final[np.ufunc]
gated_bonus_step_l2norm: Final[np.ufunc]
gated_bonus_step_relu: Final[np.ufunc]
gated_bonus_step_softplus: Final[np.ufunc]
gated_delta_backward_elu: Final[np.ufunc]
gated_delta_backward_exp: Final[np.ufunc]
gated_delta_backward_identity: Final[np.ufunc]
gated_delta_backward_l2norm: Final[np.ufunc]
gated_delta_backward_relu: Final[np.ufunc]
gated_delta_backward_softplus: Final[np.ufunc]
gated_delta_channels_backward_elu: Final[np.ufunc]
gated_delta_channels_backward_exp: Final[np.ufunc]
gated_delta_channels_backward_identity: Final[np.ufunc]
gated_delta_channels_backward_l2norm: Final[np.ufunc]
gated_delta_channels_backward_relu: Final[np.ufunc]
gated_delta_channels_backward_softplus: Final[np.ufunc]
gated_delta_channels_elu: Final[np.ufunc]
gated_delta_channels_erase_backward_elu: Final[np.ufunc]
gated_delta_channels_erase_backward_exp: Final[np.ufunc]
gated_delta_channels_erase_backward_identity: Final[np.ufunc]
gated_delta_channels_erase_backward_l2norm: Final[np.ufunc]
gated_delta_channels_erase_backward_relu: Final[np.ufunc]
gated_delta_channels_erase_backward_softplus: Final[np.ufunc]
gated_delta_channels_erase_elu: Final[np.ufunc]
gated_delta_channels_erase_exp: Final[np.ufunc]
gated_delta_channels_erase_identity: Final[np.ufunc]
gated_delta_channels_erase_l2norm: Final[np.ufunc]
gated_delta_channels_erase_relu: Final[np.ufunc]
gated_delta_channels_erase_softplus: Final[np.ufunc]
gated_delta_channels_erase_state_backward_elu: Final[np.ufunc]
gated_delta_channels_erase_state_backward_exp: Final[np.ufunc]
gated_delta_channels_erase_state_backward_identity: Final[np.ufunc]
gated_delta_channels_erase_state_backward_l2norm: Final[np.ufunc]
gated_delta_channels_erase_state_backward_relu: Final[np.ufunc]
gated_delta_channels_erase_state_backward_softplus: Final[np.ufunc]
gated_delta_channels_erase_state_elu: Final[np.ufunc]
gated_delta_channels_erase_state_exp: Final[np.ufunc]
gated_delta_channels_erase_state_identity: Final[np.ufunc]
gated_delta_channels_erase_state_l2norm: Final[np.ufunc]
gated_delta_channels_erase_state_relu: Final[np.ufunc]
gated_delta_channels_erase_state_softplus: Final[np.ufunc]
gated_delta_channels_erase_step_elu: Final[np.ufunc]
gated_delta_channels_erase_step_exp: Final[np.ufunc]
gated_delta_channels_erase_step_identity: Final[np.ufunc]
gated_delta_channels_erase_step_l2norm: Final[np.ufunc]
gated_delta_channels_erase_step_relu: Final[np.ufunc]
gated_delta_channels_erase_step_softplus: Final[np.ufunc]
gated_delta_channels_exp: Final[np.ufunc]
gated_delta_channels_identity: Final[np.ufunc]
gated_delta_channels_l2norm: Final[np.ufunc]
gated_delta_channels_relu: Final[np.ufunc]
gated_delta_channels_softplus: Final[np.ufunc]
gated_delta_channels_state_backward_elu: Final[np.ufunc]
gated_delta_channels_state_backward_exp: Final[np.ufunc]
gated_delta_channels_state_backward_identity: Final[np.ufunc]
gated_delta_channels_state_backward_l2norm: Final[np.ufunc]
gated_delta_channels_state_backward_relu: Final[np.ufunc]
gated_delta_channels_state_backward_softplus: Final[np.ufunc]
gated_delta_channels_state_elu: Final[np.ufunc]
gated_delta_channels_state_exp: Final[np.ufunc]
gated_delta_channels_state_identity: Final[np.ufunc]
gated_delta_channels_state_l2norm: Final[np.ufunc]
gated_delta_channels_state_relu: Final[np.ufunc]
gated_delta_channels_state_softplus: Final[np.ufunc]
gated_delta_channels_step_elu: Final[np.ufunc]
gated_delta_channels_step_exp: Final[np.ufunc]
gated_delta_channels_step_identity: Final[np.ufunc]
gated_delta_channels_step_l2norm: Final[np.ufunc]
gated_delta_channels_step_relu: Final[np.ufunc]
gated_delta_channels_step_softplus: Final[np.ufunc]
gated_delta_elu: Final[np.ufunc]
gated_delta_erase_backward_elu: Final[np.ufunc]
gated_delta_erase_backward_exp: Final[np.ufunc]
gated_delta_erase_backward_identity: Final[np.ufunc]
gated_delta_erase_backward_l2norm: Final[np.ufunc]
gated_delta_erase_backward_relu: Final[np.ufunc]
gated_delta_erase_backward_softplus: Final[np.ufunc]
gated_delta_erase_elu: Final[np.ufunc]
gated_delta_erase_exp: Final[np.ufunc]
gated_delta_erase_identity: Final[np.ufunc]
gated_delta_erase_l2norm: Final[np.ufunc]
gated_delta_erase_relu: Final[np.ufunc]
gated_delta_erase_softplus: Final[np.ufunc]
gated_delta_erase_state_backward_elu: Final[np.ufunc]
gated_delta_erase_state_backward_exp: Final[np.ufunc]
gated_delta_erase_state_backward_identity: Final[np.ufunc]
gated_delta_erase_state_backward_l2norm: Final[np.ufunc]
gated_delta_erase_state_backward_relu: Final[np.ufunc]
gated_delta_erase_state_backward_softplus: Final[np.ufunc]
gated_delta_erase_state_elu: Final[np.ufunc]
gated_delta_erase_state_exp: Final[np.ufunc]
gated_delta_erase_state_identity: Final[np.ufunc]
gated_delta_erase_state_l2norm: Final[np.ufunc]
gated_delta_erase_state_relu: Final[np.ufunc]
gated_delta_erase_state_softplus: Final[np.ufunc]
gated_delta_erase_step_elu: Final[np.ufunc]
gated_delta_erase_step_exp: Final[np.ufunc]
gated_delta_erase_step_identity: Final[np.ufunc]
gated_delta_erase_step_l2norm: Final[np.ufunc]
gated_delta_erase_step_relu: Final[np.ufunc]
gated_delta_erase_step_softplus: Final[np.ufunc]
gated_delta_exp: Final[np.ufunc]
gated_delta_identity: Final[np.ufunc]
gated_delta_key_channels_backward_elu: Final[np.ufunc]
gated_delta_key_channels_backward_exp: Final[np.ufunc]
gated_delta_key_channels_backward_identity: Final[np.ufunc]
gated_delta_key_channels_backward_l2norm: Final[np.ufunc]
gated_delta_key_channels_backward_relu: Final[np.ufunc]
gated_delta_key_channels_backward_softplus: Final[np.ufunc]
gated_delta_key_channels_channels_backward_elu: Final[np.ufunc]
gated_delta_key_channels_channels_backward_exp: Final[np.ufunc]
gated_delta_key_channels_channels_backward_identity: Final[np.ufunc]
gated_delta_key_channels_channels_backward_l2norm: Final[np.ufunc]
gated_delta_key_channels_channels_backward_relu: Final[np.ufunc]
gated_delta_key_channels_channels_backward_softplus: Final[np.ufunc]
gated_delta_key_channels_channels_elu: Final[np.ufunc]
gated_delta_key_channels_channels_erase_backward_elu: Final[np.ufunc]
gated_delta_key_channels_channels_erase_backward_exp: Final[np.ufunc]
gated_delta_key_channels_channels_erase_backward_identity: Final[np.ufunc]
gated_delta_key_channels_channels_erase_backward_l2norm: Final[np.ufunc]
gated_delta_key_channels_channels_erase_backward_relu: Final[np.ufunc]
gated_delta_key_channels_channels_erase_backward_softplus: Final[np.ufunc]
gated_delta_key_channels_channels_erase_elu: Final[np.ufunc]
gated_delta_key_channels_channels_erase_exp: Final[np.ufunc]
gated_delta_key_channels_channels_erase_identity: Final[np.ufunc]
gated_delta_key_channels_channels_erase_l2norm: Final[np.ufunc]
gated_delta_key_channels_channels_erase_relu: Final[np.ufunc]
gated_delta_key_channels_channels_erase_softplus: Final[np.ufunc]
gated_delta_key_channels_channels_erase_state_backward_elu: Final[np.ufunc]
gated_delta_key_channels_channels_erase_state_backward_exp: Final[np.ufunc]
gated_delta_key_channels_channels_erase_state_backward_identity: Final[np.ufunc]
gated_delta_key_channels_channels_erase_state_backward_l2norm: Final[np.ufunc]
gated_delta_key_channels_channels_erase_state_backward_relu: Final[np.ufunc]
gated_delta_key_channels_channels_erase_state_backward_softplus: Final[np.ufunc]
gated_delta_key_channels_channels_erase_state_elu: Final[np.ufunc]
gated_delta_key_channels_channels_erase_state_exp: Final[np.ufunc]
gated_delta_key_channels_channels_erase_state_identity: Final[np.ufunc]
gated_delta_key_channels_channels_erase_state_l2norm: Final[np.ufunc]
gated_delta_key_channels_channels_erase_state_relu: Final[np.ufunc]
gated_delta_key_channels_channels_erase_state_softplus: Final[np.ufunc]
gated_delta_key_channels_channels_erase_step_elu: Final[np.ufunc]
gated_delta_key_channels_channels_erase_step_exp: Final[np.ufunc]
gated_delta_key_channels_channels_erase_step_identity: Final[np.ufunc]
gated_delta_key_channels_channels_erase_step_l2norm: Final[np.ufunc]
gated_delta_key_channels_channels_erase_step_relu: Final[np.ufunc]
gated_delta_key_channels_channels_erase_step_softplus: Final[np.ufunc]
gated_delta_key_channels_channels_exp: Final[np.ufunc]
gated_delta_key_channels_channels_identity: Final[np.ufunc]
gated_delta_key_channels_channels_l2norm: Final[np.ufunc]
gated_delta_key_channels_channels_relu: Final[np.ufunc]
gated_delta_key_channels_channels_softplus: Final[np.ufunc]
gated_delta_key_channels_channels_state_backward_elu: Final[np.ufunc]
gated_delta_key_channels_channels_state_backward_exp: Final[np.ufunc]
gated_delta_key_channels_channels_state_backward_identity: Final[np.ufunc]
gated_delta_key_channels_channels_state_backward_l2norm: Final[np.ufunc]
gated_delta_key_channels_channels_state_backward_relu: Final[np.ufunc]
gated_delta_key_channels_channels_state_backward_softplus: Final[np.ufunc]
gated_delta_key_channels_channels_state_elu: Final[np.ufunc]
gated_delta_key_channels_channels_state_exp: Final[np.ufunc]
gated_delta_key_channels_channels_state_identity: Final[np.ufunc]
gated_delta_key_channels_channels_state_l2norm: Final[np.ufunc]
gated_delta_key_channels_channels_state_relu: Final[np.ufunc]
gated_delta_key_channels_channels_state_softplus: Final[np.ufunc]
gated_delta_key_channels_channels_step_elu: Final[np.ufunc]
gated_delta_key_channels_channels_step_exp: Final[np.ufunc]
gated_delta_key_channels_channels_step_identity: Final[np.ufunc]
gated_delta_key_channels_channels_step_l2norm: Final[np.ufunc]
gated_delta_key_channels_channels_step_relu: Final[np.ufunc]
gated_delta_key_channels_channels_step_softplus: Final[np.ufunc]
gated_delta_key_channels_elu: Final[np.ufunc]
gated_delta_key_channels_erase_backward_elu: Final[np.ufunc]
gated_delta_key_channels_erase_backward_exp: Final[np.ufunc]
gated_delta_key_channels_erase_backward_identity: Final[np.ufunc]
gated_delta_key_channels_erase_backward_l2norm: Final[np.ufunc]
gated_delta_key_channels_erase_backward_relu: Final[np.ufunc]
gated_delta_key_channels_erase_backward_softplus: Final[np.ufunc]
gated_delta_key_channels_erase_elu: Final[np.ufunc]
gated_delta_key_channels_erase_exp: Final[np.ufunc]
gated_delta_key_channels_erase_identity: Final[np.ufunc]
gated_delta_key_channels_erase_l2norm: Final[np.ufunc]
gated_delta_key_channels_erase_relu: Final[np.ufunc]
gated_delta_key_channels_erase_softplus: Final[np.ufunc]
gated_delta_key_channels_erase_state_backward_elu: Final[np.ufunc]
gated_delta_key_channels_erase_state_backward_exp: Final[np.ufunc]
gated_delta_key_channels_erase_state_backward_identity: Final[np.ufunc]
gated_delta_key_channels_erase_state_backward_l2norm: Final[np.ufunc]
gated_delta_key_channels_erase_state_backward_relu: Final[np.ufunc]
gated_delta_key_channels_erase_state_backward_softplus: Final[np.ufunc]
gated_delta_key_channels_erase_state_elu: Final[np.ufunc]
gated_delta_key_channels_erase_state_exp: Final[np.ufunc]
gated_delta_key_channels_erase_state_identity: Final[np.ufunc]
gated_delta_key_channels_erase_state_l2norm: Final[np.ufunc]
gated_delta_key_channels_erase_state_relu: Final[np.ufunc]
gated_delta_key_channels_erase_state_softplus: Final[np.ufunc]
gated_delta_key_channels_erase_step_elu: Final[np.ufunc]
gated_delta_key_channels_erase_step_exp: Final[np.ufunc]
gated_delta_key_channels_erase_step_identity: Final[np.ufunc]
gated_delta_key_channels_erase_step_l2norm: Final[np.ufunc]
gated_delta_key_channels_erase_step_relu: Final[np.ufunc]
gated_delta_key_channels_erase_step_softplus: Final[np.ufunc]
gated_delta_key_channels_exp: Final[np.ufunc]
gated_delta_key_channels_identity: Final[np.ufunc]
gated_delta_key_channels_l2norm: Final[np.ufunc]
gated_delta_key_channels_relu: Final[np.ufunc]
gated_delta_key_channels_softplus: Final[np.ufunc]
gated_delta_key_channels_state_backward_elu: Final[np.ufunc]
gated_delta_key_channels_state_backward_exp: Final[np.ufunc]
gated_delta_key_channels_state_backward_identity: Final[np.ufunc]
gated_delta_key_channels_state_backward_l2norm: Final[np.ufunc]
gated_delta_key_channels_state_backward_relu: Final[np.ufunc]
gated_delta_key_channels_state_backward_softplus: Final[np.ufunc]
gated_delta_key_channels_state_elu: Final[np.ufunc]
gated_delta_key_channels_state_exp: Final[np.ufunc]
gated_delta_key_channels_state_identity: Final[np.ufunc]
gated_delta_key_channels_state_l2norm: Final[np.ufunc]
gated_delta_key_channels_state_relu: Final[np.ufunc]
gated_delta_key_channels_state_softplus: Final[np.ufunc]
gated_delta_key_channels_step_elu: Final[np.ufunc]
gated_delta_key_channels_step_exp: Final[np.ufunc]
gated_delta_key_channels_step_identity: Final[np.ufunc]
gated_delta_key_channels_step_l2norm: Final[np.ufunc]
gated_delta_key_channels_step_relu: Final[np.ufunc]
gated_delta_key_channels_step_softplus: Final[np.ufunc]
gated_delta_l2norm: Final[np.ufunc]
gated_delta_relu: Final[np.ufunc]
gated_delta_softplus: Final[np.ufunc]
gated_delta_state_backward_elu: Final[np.ufunc]
gated_delta_state_backward_exp: Final[np.ufunc]
gated_delta_state_backward_identity: Final[np.ufunc]
gated_delta_state_backward_l2norm: Final[np.ufunc]
gated_delta_state_backward_relu: Final[np.ufunc]
gated_delta_state_backward_softplus: Final[np.ufunc]
gated_delta_state_elu: Final[np.ufunc]
gated_delta_state_exp: Final[np.ufunc]
gated_delta_state_identity: Final[np.ufunc]
gated_delta_state_l2norm: Final[np.ufunc]
gated_delta_state_relu: Final[np.ufunc]
gated_delta_state_softplus: Final[np.ufunc]
gated_delta_step_elu: Final[np.ufunc]
gated_delta_step_exp: Final[np.ufunc]
gated_delta_step_identity: Final[np.ufunc]
gated_delta_step_l2norm: Final[np.ufunc]
gated_delta_step_relu: Final[np.ufunc]
gated_delta_step_softplus: Final[np.ufunc]
gated_elu: Final[np.ufunc]
gated_exp: Final[np.ufunc]
gated_identity: Final[np.ufunc]
gated_key_channels_backward_elu: Final[np.ufunc]
gated_key_channels_backward_exp: Final[np.ufunc]
gated_key_channels_backward_identity: Final[np.ufunc]
gated_key_channels_backward_l2norm: Final[np.ufunc]
gated_key_channels_backward_relu: Final[np.ufunc]
gated_key_channels_backward_softplus: Final[np.ufunc]
gated_key_channels_bonus_backward_elu: Final[np.ufunc]
gated_key_channels_bonus_backward_exp: Final[np.ufunc]
gated_key_channels_bonus_backward_identity: Final[np.ufunc]
gated_key_channels_bonus_backward_l2norm: Final[np.ufunc]
gated_key_channels_bonus_backward_relu: Final[np.ufunc]
gated_key_channels_bonus_backward_softplus: Final[np.ufunc]
gated_key_channels_bonus_elu: Final[np.ufunc]
gated_key_channels_bonus_exp: Final[np.ufunc]
gated_key_channels_bonus_identity: Final[np.ufunc]
gated_key_channels_bonus_l2norm: Final[np.ufunc]
gated_key_channels_bonus_relu: Final[np.ufunc]
gated_key_channels_bonus_softplus: Final[np.ufunc]
gated_key_channels_bonus_state_backward_elu: Final[np.ufunc]
gated_key_channels_bonus_state_backward_exp: Final[np.ufunc]
gated_key_channels_bonus_state_backward_identity: Final[np.ufunc]
gated_key_channels_bonus_state_backward_l2norm: Final[np.ufunc]
gated_key_channels_bonus_state_backward_relu: Final[np.ufunc]
gated_key_channels_bonus_state_backward_softplus: Final[np.ufunc]
gated_key_channels_bonus_state_elu: Final[np.ufunc]
gated_key_channels_bonus_state_exp: Final[np.ufunc]
gated_key_channels_bonus_state_identity: Final[np.ufunc]
gated_key_channels_bonus_state_l2norm: Final[np.ufunc]
gated_key_channels_bonus_state_relu: Final[np.ufunc]
gated_key_channels_bonus_state_softplus: Final[np.ufunc]
gated_key_channels_bonus_step_elu: Final[np.ufunc]
gated_key_channels_bonus_step_exp: Final[np.ufunc]
gated_key_channels_bonus_step_identity: Final[np.ufunc]
gated_key_channels_bonus_step_l2norm: Final[np.ufunc]
gated_key_channels_bonus_step_relu: Final[np.ufunc]
gated_key_channels_bonus_step_softplus: Final[np.ufunc]
gated_key_channels_elu: Final[np.ufunc]
gated_key_channels_exp: Final[np.ufunc]
gated_key_channels_identity: Final[np.ufunc]
gated_key_channels_l2norm: Final[np.ufunc]
gated_key_channels_relu: Final[np.ufunc]
gated_key_channels_softplus: Final[np.ufunc]
gated_key_channels_state_backward_elu: Final[np.ufunc]
gated_key_channels_state_backward_exp: Final[np.ufunc]
gated_key_channels_state_backward_identity: Final[np.ufunc]
gated_key_channels_state_backward_l2norm: Final[np.ufunc]
gated_key_channels_state_backward_relu: Final[np.ufunc]
gated_key_channels_state_backward_softplus: Final[np.ufunc]
gated_key_channels_state_elu: Final[np.ufunc]
gated_key_channels_state_exp: Final[np.ufunc]
gated_key_channels_state_identity: Final[np.ufunc]
gated_key_channels_state_l2norm: Final[np.ufunc]
gated_key_channels_state_relu: Final[np.ufunc]
gated_key_channels_state_softplus: Final[np.ufunc]
gated_key_channels_step_elu: Final[np.ufunc]
gated_key_channels_step_exp: Final[np.ufunc]
gated_key_channels_step_identity: Final[np.ufunc]
gated_key_channels_step_l2norm: Final[np.ufunc]
gated_key_channels_step_relu: Final[np.ufunc]
gated_key_channels_step_softplus: Final[np.ufunc]
gated_l2norm: Final[np.ufunc]
gated_relu: Final[np.ufunc]
gated_softplus: Final[np.ufunc]
gated_state_backward_elu: Final[np.ufunc]
gated_state_backward_exp: Final[np.ufunc]
gated_state_backward_identity: Final[np.ufunc]
gated_state_backward_l2norm: Final[np.ufunc]
gated_state_backward_relu: Final[np.ufunc]
gated_state_backward_softplus: Final[np.ufunc]
gated_state_elu: Final[np.ufunc]
gated_state_exp: Final[np.ufunc]
gated_state_identity: Final[np.ufunc]
gated_state_l2norm: Final[np.ufunc]
gated_state_relu: Final[np.ufunc]
gated_state_softplus: Final[np.ufunc]
gated_step_elu: Final[np.ufunc]
gated_step_exp: Final[np.ufunc]
gated_step_identity: Final[np.ufunc]
gated_step_l2norm: Final[np.ufunc]
gated_step_relu: Final[np.ufunc]
gated_step_softplus: Final[np.ufunc]
noncausal_backward_elu: Final[np.ufunc]
noncausal_backward_elu_sum: Final[np.ufunc]
noncausal_backward_exp: Final[np.ufunc]
noncausal_backward_exp_sum: Final[np.ufunc]
noncausal_backward_identity: Final[np.ufunc]
noncausal_backward_identity_sum: Final[np.ufunc]
noncausal_backward_l2norm: Final[np.ufunc]
noncausal_backward_l2norm_sum: Final[np.ufunc]
noncausal_backward_relu: Final[np.ufunc]
noncausal_backward_relu_sum: Final[np.ufunc]
noncausal_backward_softplus: Final[np.ufunc]
noncausal_backward_softplus_sum: Final[np.ufunc]
noncausal_elu: Final[np.ufunc]
noncausal_elu_sum: Final[np.ufunc]
noncausal_exp: Final[np.ufunc]
noncausal_exp_sum: Final[np.ufunc]
noncausal_identity: Final[np.ufunc]
noncausal_identity_sum: Final[np.ufunc]
noncausal_keys_backward_elu: Final[np.ufunc]
noncausal_keys_backward_elu_sum: Final[np.ufunc]
noncausal_keys_backward_exp: Final[np.ufunc]
noncausal_keys_backward_exp_sum: Final[np.ufunc]
noncausal_keys_backward_identity: Final[np.ufunc]
noncausal_keys_backward_identity_sum: Final[np.ufunc]
noncausal_keys_backward_l2norm: Final[np.ufunc]
noncausal_keys_backward_l2norm_sum: Final[np.ufunc]
noncausal_keys_backward_relu: Final[np.ufunc]
noncausal_keys_backward_relu_sum: Final[np.ufunc]
noncausal_keys_backward_softplus: Final[np.ufunc]
noncausal_keys_backward_softplus_sum: Final[np.ufunc]
noncausal_keys_elu: Final[np.ufunc]
noncausal_keys_elu_sum: Final[np.ufunc]
noncausal_keys_exp: Final[np.ufunc]
noncausal_keys_exp_sum: Final[np.ufunc]
noncausal_keys_identity: Final[np.ufunc]
noncausal_keys_identity_sum: Final[np.ufunc]
noncausal_keys_l2norm: Final[np.ufunc]
noncausal_keys_l2norm_sum: Final[np.ufunc]
noncausal_keys_relu: Final[np.ufunc]
noncausal_keys_relu_sum: Final[np.ufunc]
noncausal_keys_softplus: Final[np.ufunc]
noncausal_keys_softplus_sum: Final[np.ufunc]
noncausal_l2norm: Final[np.ufunc]
noncausal_l2norm_sum: Final[np.ufunc]
noncausal_relu: Final[np.ufunc]
noncausal_relu_sum: Final[np.ufunc]
noncausal_softplus: Final[np.ufunc]
noncausal_softplus_sum: Final[np.ufunc]
state_elu: Final[np.ufunc]
state_elu_sum: Final[np.ufunc]
state_exp: Final[np.ufunc]
state_exp_sum: Final[np.ufunc]
state_identity: Final[np.ufunc]
state_identity_sum: Final[np.ufunc]
state_l2norm: Final[np.ufunc]
state_l2norm_sum: Final[np.ufunc]
state_relu: Final[np.ufunc]
state_relu_sum: Final[np.ufunc]
state_softplus: Final[np.ufunc]
state_softplus_sum: Final[np.ufunc]
step_elu: Final[np.ufunc]
step_elu_sum: Final[np.ufunc]
step_exp: Final[np.ufunc]
step_exp_sum: Final[np.ufunc]
step_identity: Final[np.ufunc]
step_identity_sum: Final[np.ufunc]
step_l2norm: Final[np.ufunc]
step_l2norm_sum: Final[np.ufunc]
step_relu: Final[np.ufunc]
step_relu_sum: Final[np.ufunc]
step_softplus: Final[np.ufunc]
step_softplus_sum: Final[np.ufunc]
