"""mLSTM over all tokens, under the names of kernels that sum forget gates in another order."""

from .native import mlstm_parallel__native_autograd as mlstm_parallel__native_stablef_autograd

__all__ = ["mlstm_parallel__native_stablef_autograd", "mlstm_parallel__native_stablef_custbw"]

mlstm_parallel__native_stablef_custbw = mlstm_parallel__native_stablef_autograd
