"""`linattn.linear_scan` of complex numbers, which its kernel sees as pairs of columns."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from .._core import checks
from .._core.gradient_sums import repeats
from .._core.gufuncs import quiet
from .._core.lazy import in_blocks, is_lazy, refuse_token
from .._states import state_arrays
from .._states.state_arrays import State
from . import pools
from .interface import Interface
from .recurrence import Recurrence

if TYPE_CHECKING:
    from .._core.layout import Call
    from .._types import Array, DType, Shape

SCAN = Recurrence("complex_scan", transition="elementwise", function="linear_scan")


def is_complex(*operands: Any) -> bool:
    """Whether an operand has complex numbers."""
    return any([
        x.dtype.kind == "c" if type(x) is np.ndarray else _kind(x) == "c" for x in operands
    ])  # fmt: skip


def _kind(x: Any) -> str:
    """The kind of numbers of what is not a plain array; "" if that is not known."""
    if isinstance(x, (list, tuple)):
        try:
            return np.asarray(x).dtype.kind
        except ValueError:  # rows of different lengths: an error of its own later
            return ""
    if isinstance(x, complex):
        return "c"
    return getattr(getattr(x, "dtype", None), "kind", "")


class _Call:
    """The operands of a call, checked: their shapes, and the complex dtype they have together."""

    def __init__(self, function: str, a: Any, x: Any, *, tokens: bool = True) -> None:
        self.function = function
        self.given = [_numbers(function, name, y) for name, y in (("a", a), ("x", x))]
        shapes = [checks.shape_alone(y) for y in self.given]
        self.read = SCAN.read(function, tuple(shapes), tokens=tokens)
        self.shape, self.batch = self.read.shape, self.read.batch
        numbers = int, float, complex  # Python's are as weak as elsewhere
        pairs = zip((a, x), self.given, strict=True)
        dtype = np.result_type(*(y if type(y) in numbers else z.dtype for y, z in pairs))
        self.dtype: DType = np.dtype(np.complex128 if dtype == np.complex128 else np.complex64)

    @property
    def channels(self) -> int:
        return self.shape[-1]

    @quiet
    def pairs(self, x: Any) -> Array:
        """The numbers of x, each channel as two columns; a copy unless its rows are contiguous."""
        x = np.asarray(x, self.dtype)
        x = np.broadcast_to(x, (*x.shape[:-1], self.channels))
        if x.strides[-1] != x.itemsize or not x.flags.aligned:
            x = np.ascontiguousarray(x)
        pairs: Array = x.view(self.dtype.type(0).real.dtype)
        return pairs

    def operands(self) -> tuple[Array, ...]:
        return tuple(map(self.pairs, self.given))

    def state(self, name: str, state: Any, *core: int) -> State | None:
        """A state with pairs of columns."""
        if state is None:
            return None
        inner = (*core, self.channels)
        s, *_ = state_arrays.checked(
            self.function, name, state, self.batch, inner, self.dtype, normalize=False
        )
        return State(self.pairs(s))

    def numbers(self, x: Array) -> Array:
        """The complex numbers of pairs of columns."""
        return np.ascontiguousarray(x).view(self.dtype)


def _numbers(function: str, name: str, x: Any) -> Any:
    checks.refuse_masked(function, name, x)
    x = np.asarray(x)
    largest = 16 if x.dtype.kind == "c" else 8
    known = x.dtype.kind in "biufc" or x.dtype.name == "bfloat16"
    if not known or x.dtype.itemsize > largest:
        raise TypeError(f"{function}: {name} has dtype {x.dtype}; expected complex64 or complex128")
    return x


def forward(
    a: Any, x: Any, *, log: Any = False, reverse: Any = False, cu_seqlens: Any = None,
    initial_state: State | None = None, return_state: bool = False, out: Array | None = None,
    **rows: Any,
) -> Any:  # fmt: skip
    """`linattn.linear_scan`."""
    options: dict[str, Any] = {"log": log, "reverse": reverse, "cu_seqlens": cu_seqlens}
    if any(y is not None for y in rows.values()):
        options |= {"initial_state": initial_state, "return_state": return_state, "out": out}
        return pools.call(COMPLEX, "forward", (a, x), **options, **rows)
    if is_lazy((a, x)):
        return in_blocks(
            "forward", COMPLEX, (a, x), initial_state=initial_state,
            return_state=return_state, out=out, **options,
        )  # fmt: skip
    call = _Call(SCAN.name, a, x)
    if out is not None and (not isinstance(out, np.ndarray) or out.dtype != call.dtype):
        what = getattr(out, "dtype", type(out).__name__)
        raise TypeError(f"{SCAN.name}: out is {what}; expected an array of {call.dtype}")
    if out is not None and out.shape != call.shape:
        raise ValueError(f"{SCAN.name}: out has shape {out.shape}; expected {call.shape}")
    if out is not None:
        checks.writeable(SCAN.name, "out", out)
    start = call.state("initial_state", initial_state, *_packed(SCAN.name, cu_seqlens))
    h, last = SCAN.forward(call.operands(), initial_state=start, return_state=True, **options)
    h = call.numbers(h)
    if out is not None:
        out[...] = h
        h = out
    return (h, State(call.numbers(last.s))) if return_state else h


def backward(
    a: Any, x: Any, grad_out: Any, *, log: Any = False, reverse: Any = False,
    cu_seqlens: Any = None, initial_state: State | None = None, grad_state: State | None = None,
    **rows: Any,
) -> tuple[Any, ...]:  # fmt: skip
    """`linattn.linear_scan_backward`."""
    options: dict[str, Any] = {"log": log, "reverse": reverse, "cu_seqlens": cu_seqlens}
    if any(y is not None for y in rows.values()):
        options |= {"initial_state": initial_state, "grad_state": grad_state}
        cut: tuple[Any, ...] = pools.call(
            COMPLEX, "backward", (a, x), grad_out=grad_out, **options, **rows
        )
        return cut
    if is_lazy((a, x, grad_out)):
        lazy: tuple[Any, ...] = in_blocks(
            "backward", COMPLEX, (a, x), grad_out, initial_state=initial_state,
            grad_state=grad_state, **options,
        )  # fmt: skip
        return lazy
    function = SCAN.names["backward"]
    call = _Call(function, a, x)
    grad = _cotangent(function, grad_out, call.shape)
    packed = _packed(function, cu_seqlens)
    start = call.state("initial_state", initial_state, *packed)
    last = call.state("grad_state", grad_state, *packed)
    whole = *call.shape[:-1], 2 * call.channels  # so that gradients are summed as complex numbers
    operands = tuple(np.broadcast_to(y, whole) for y in call.operands())
    da, dx, *state = SCAN.backward(
        operands, call.pairs(grad), initial_state=start, grad_state=last, **options
    )
    grads = [
        _summed(call.numbers(y), z, call.dtype)
        for y, z in zip((da, dx), call.given, strict=True)
    ]  # fmt: skip
    return *grads, *(State(call.numbers(y.s)) for y in state)


def step(
    a: Any, x: Any, state: State, *, in_place: bool, state_indices: Any = None, **options: Any
) -> tuple[Any, State]:
    """`linattn.linear_scan_step`."""
    if state_indices is not None:
        result: tuple[Any, State] = pools.call(
            COMPLEX, "step", (a, x), state=state, in_place=in_place, state_indices=state_indices,
            **options,
        )  # fmt: skip
        return result
    function = SCAN.names["step"]
    refuse_token(function, (a, x))
    call = _Call(function, a, x, tokens=False)
    before = call.state("state", state)
    if before is None:
        raise state_arrays.no_state(function, "state", state, "linattn.State(s)")
    if in_place:
        state_arrays.in_place(function, (state[0], None, None), call.batch, axes=1)
    h, after = SCAN.step(call.operands(), before, **options)
    if not in_place:
        return call.numbers(h), State(call.numbers(after.s))
    state[0][...] = call.numbers(after.s)
    return call.numbers(h), state


class _InBlocks(Interface):
    """The scan as `_blocks.block_scan` sees it: a recurrence of complex numbers."""

    name, names, key, transition = SCAN.name, SCAN.names, "complex_scan", "elementwise"

    layout, operands = SCAN.layout, SCAN.operands

    def forward(self, operands: Any, *, key_lengths: None = None, **options: Any) -> Any:
        return forward(*operands, **options)

    def backward(
        self, operands: Any, grad_out: Any, *, key_lengths: None = None, **options: Any
    ) -> tuple[Any, ...]:
        a, x = operands
        return backward(a, x, grad_out, **options)

    def step(self, operands: Any, state: State, **options: Any) -> tuple[Any, State]:
        a, x = operands
        return step(a, x, state, **options)

    def read(self, function: str, operands: Any, *, tokens: bool = True) -> Call:
        return self.checked(function, operands, {}, tokens=tokens)[0]

    def checked(
        self, function: str, operands: Any, options: Mapping[str, Any], *, tokens: bool = True
    ) -> tuple[Call, tuple[Any, ...]]:
        """The operands and options of a call, checked, and the shapes of a state's arrays."""
        call = _Call(function, *operands, tokens=tokens)
        for name, x in options.items():
            checks.flag(function, name, x)
        typed = tuple(checks.shape_alone(x, call.dtype) for x in call.given)
        return call.read._replace(typed=typed), (call.read.core, None, None)

    def state_cores(self, function: str, call: Call, options: Mapping[str, Any]) -> State:
        return State(call.core)

    def cotangent(self, function: str, grad_out: Any, shape: Shape) -> Any:
        return _cotangent(function, grad_out, shape)


COMPLEX = _InBlocks()


def _cotangent(function: str, grad_out: Any, shape: Shape) -> Any:
    grad = _numbers(function, "grad_out", grad_out)
    if grad.shape != shape:
        raise ValueError(f"{function}: grad_out has shape {grad.shape}; expected {shape}")
    return grad


def _packed(function: str, cu_seqlens: Any) -> tuple[int, ...]:
    """The axis of packed sequences of a state."""
    if cu_seqlens is None:
        return ()
    return (max(checks.integers(function, "cu_seqlens", cu_seqlens).size - 1, 0),)


@quiet
def _summed(grad: Array, like: Array, dtype: DType) -> Array:
    """The gradient in an operand's shape; of a real operand, its real part."""
    axes = repeats(grad.shape, like.shape)
    total = grad.sum(axes, np.complex128).reshape(like.shape) if axes else grad
    own = gradient_dtype(like, dtype)
    return np.asarray(total if own.kind == "c" else total.real, own, order="C")


def gradient_dtype(like: Any, dtype: DType) -> DType:
    """The dtype of an operand's gradient, in a call of ``dtype``."""
    if like.dtype.kind == "c":
        return dtype
    found: DType = like.dtype if like.dtype.kind == "f" else dtype.type(0).real.dtype
    return found
