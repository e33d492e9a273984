"""mLSTM over all tokens, under the name of a kernel for GPUs."""

from .native import mlstm_chunkwise__native_autograd as mlstm_chunkwise__xl_chunk

__all__ = ["mlstm_chunkwise__xl_chunk"]
