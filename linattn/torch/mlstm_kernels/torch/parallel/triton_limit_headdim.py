"""mLSTM over all tokens, under the name of a kernel for GPUs."""

from .native import mlstm_parallel__native_autograd as mlstm_parallel__limit_headdim

__all__ = ["mlstm_parallel__limit_headdim"]
