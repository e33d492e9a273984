"""One token of mLSTM, under the name of a kernel for GPUs."""

from .native_step import mlstm_recurrent_step__native as mlstm_recurrent_step__triton

__all__ = ["mlstm_recurrent_step__triton"]
