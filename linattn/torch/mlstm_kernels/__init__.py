"""A stand-in for the package mlstm_kernels, on CPUs.

``torch`` has the names and signatures of mlstm_kernels 2.0: the kernels of mLSTM by name, with
exponential and with sigmoid input gates, and the module that xLSTM's layers call.  All operands
have gradients.  `linattn.torch.install_as` puts it in place of that package.

There is nothing for JAX.  All kernels are linattn's: which of them is chosen has no effect, nor
have arguments that tune them.
"""

__version__ = "2.0.6+linattn"
