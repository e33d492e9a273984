"""Run fla's Triton kernels on CPU tensors in Triton's interpreter, as an oracle for the patch.

``python fla_interpreter.py NAME ...`` prints a line for each model: its name, and the largest
errors of logits and of gradients relative to the largest logit and gradient.

The interpreter has no autotuner, and its loop variables are Python integers, which have no ``to``.
"""

import builtins
import os
import sys

os.environ["TRITON_INTERPRET"] = "1"  # read at the import of triton

import numpy as np
import torch
import triton.language as tl
from triton.runtime import interpreter
from triton.runtime.autotuner import Autotuner

depth = 0  # of kernels that run


def first_configuration(self, *args, **kwargs):
    return self.fn.run(*args, **(self.configs[0].kwargs | kwargs))


def scalars(*bounds):
    """``range`` of kernels: scalars of Triton."""
    if not depth:
        yield from builtins.range(*bounds)
        return
    for i in builtins.range(*map(_integer, bounds)):
        yield tl.tensor(interpreter.TensorHandle(np.array([i], np.int32), tl.int32), tl.int32)


def _integer(x):
    if isinstance(x, tl.tensor):
        return int(np.asarray(x.handle.data).item())
    return int(x.value if isinstance(x, tl.constexpr) else x)


def run_kernel(self, *args, **kwargs):
    global depth
    self.fn.__globals__["range"] = scalars
    depth += 1
    try:
        return call(self, *args, **kwargs)
    finally:
        depth -= 1


call = interpreter.GridExecutor.__call__
interpreter.GridExecutor.__call__ = run_kernel
Autotuner.run = first_configuration


def results(model, ids):
    """Logits, and the gradients of all parameters as one vector."""
    logits = model(ids).logits
    loss = torch.nn.functional.cross_entropy(logits[0, :-1].float(), ids[0, 1:])
    gradients = torch.autograd.grad(
        loss, list(model.parameters()), allow_unused=True, materialize_grads=True
    )
    return logits.detach(), torch.cat([x.flatten() for x in gradients])


def main(names):
    from fla_models import build, tokens

    from linattn.torch import patch_fla

    torch.set_num_threads(1)
    for name in names:
        layers = 2 if name == "RWKV7" else 1  # it divides by how many follow the first
        sizes = {"head_dim": 32, "num_heads": 1, "num_hidden_layers": layers}
        model, ids = build(name, **sizes).train(), tokens(1, 40)
        with patch_fla():
            ours = results(model, ids)
        theirs = results(model, ids)
        errors = [
            ((a - b).abs().max() / b.abs().max()).item() for a, b in zip(ours, theirs, strict=True)
        ]
        print(name, *errors, flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
