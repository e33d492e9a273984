"""linattn for JAX: the operators on CPU arrays, differentiable, under jit, vmap and shard_map.

Names and arguments are those of the NumPy functions, without ``out``, ``in_place``, ``state_at``
and ``state_indices``; the ``_backward`` functions and the fused steps are missing.  ``axis_name``
is new, and ``feature_map`` may also be a function of JAX's arrays.
`linattn.feature_maps.PositiveRandomFeatures` need ``normalize=False``.  XLA calls the C kernels
without Python or a copy; only feature maps that are objects run in Python, on XLA's buffers.
Gradients are reverse-mode, of first order, and flow through states.  ``scale`` and ``eps`` have to
be numbers when a function is traced.

Arrays have to be on a CPU.  Where JAX has a GPU or TPU, it puts new arrays there, and the functions
raise a ValueError; under `jax.jit` when they are lowered.  Move the arrays, or make the CPU the
default device before you create them::

    cpu = jax.devices("cpu")[0]
    o = linattn.jax.causal(*jax.device_put((q, k, v), cpu))
    with jax.default_device(cpu):
        q = jax.numpy.asarray(q)  # a NumPy array

`jax.export` needs ``DisabledSafetyCheck.custom_call("linattn")``, and accepts symbolic sizes.  A
process that runs an exported function has to import linattn.jax first.  Feature maps that are
objects work only in the process that exported them.

If a version of JAX does not accept the handler, you get a warning, `IN_C` is False, and calls use
`jax.pure_callback`, on one device only.

Within `jax.shard_map`, ``axis_name`` is the axis of the mesh along which the tokens are cut.  Each
device computes the effect of its tokens on the state, and one all-gather sends these effects:
nothing else is sent.  ``key_lengths``, ``cu_seqlens`` and ``block`` have to be None then, and
``beta`` one number per token; `noncausal`, `slstm` and `causal_conv1d` have no ``axis_name``.
Gradients need `jax.shard_map` with ``check_vma=False``.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

try:
    import jax.numpy
except ImportError as error:
    raise ImportError(f"linattn.jax needs {error.name}: pip install -e '.[jax]'") from error
if jax.__version_info__ < (0, 8, 1):  # with the handler registered, these find no CPU
    raise ImportError(
        f"linattn.jax needs jax 0.8.1 or newer and found {jax.__version__}: pip install -e '.[jax]'"
    )

import linattn

from .._bridges.bridge import made, recurrences
from .._bridges.rows import JAX
from .._call.recurrence import Recurrence
from .._docs.templates import Raised
from .._states.state_arrays import ExactState, State, exact_state
from . import _functions, _recurrence, _sharded
from ._custom_calls import IN_C

if TYPE_CHECKING:
    from .._signatures.jax import *  # noqa: F403


def _forward(r: Recurrence) -> Callable[..., Any]:
    def forward(
        operands: tuple[Any, ...], *, axis_name: str | None = None, block: int | None = None,
        **options: Any,
    ) -> Any:  # fmt: skip
        if axis_name is not None:
            return _sharded.forward(r, operands, axis_name, block=block, **options)
        return _recurrence.forward(r, operands, block=block, **options)

    return forward


_made = recurrences(JAX, forward=_forward, step=lambda r: partial(_recurrence.step, r))
_STATE = (
    Raised("TypeError", "", "an operand is not of real numbers"),
    Raised("TypeError", "", "there are more operands than the operator has"),
    Raised("TypeError", "feature_map", "is given and the operator takes none"),
    Raised("ValueError", "", "shapes do not match"),
    Raised("ValueError", "operator feature_map cu_seqlens", "is wrong"),
)
#: Functions that are no recurrences, whose docstrings are examples, and their errors if others.
_OTHERS: dict[Callable[..., Any], tuple[Raised, ...]] = {
    _recurrence.initial_state: _STATE,
    _functions.softmax_attention: (),
    _functions.linformer: (),
    _functions.log_decay: (),
}
for _call, _raises in _OTHERS.items():
    _name, _example = _call.__name__, _call.__doc__ or ""
    _made[_name] = made(getattr(linattn, _name), JAX, _call, raises=_raises, example=_example)

jax.tree_util.register_pytree_node(
    ExactState,
    lambda state: ((tuple(state), state.lost), None),
    lambda _, parts: exact_state(*parts),
)
globals().update(_made)
__all__ = [*_made, "IN_C", "State"]
