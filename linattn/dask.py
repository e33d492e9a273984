"""linattn on dask arrays in blocks, along the tokens and along the leading axes.

The functions take what the NumPy functions take, dask arrays among it, and give lazy dask arrays:
nothing is computed until they are.  `linattn.causal` and its like come here by themselves where
they are given dask arrays.

Leading axes are independent.  Along n, each block's effect on the state is computed by itself,
the effects are put together in a scan of 2 log2(blocks) steps, and each block then runs from its
own state; the gradient goes the same way from the last block to the first.  So a worker holds its
blocks and some states, and tasks are pure functions: retries, spilling and persisting are safe.

What it costs, in passes over the tokens: `causal` half a pass more than in one piece; `gated` one
more; `delta`, `gated_delta` and `dplr` two more, one of them as wide as there are features, as
the effect of a block on a state is a matrix there: it pays from three workers on.  The gradients
run twice, and once forwards.  A block wants 10^5 tokens and more beside a task's millisecond.

On a cluster dask's nanny sets MALLOC_TRIM_THRESHOLD_, which makes the system hand every array's
pages out anew; `distributed.nanny.pre-spawn-environ` can unset it where memory allows.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import wraps
from importlib import import_module
from itertools import product
from typing import Any

import numpy as np

try:
    import dask.array as da
    from dask.base import tokenize
    from dask.delayed import delayed
    from dask.highlevelgraph import HighLevelGraph
except ImportError as error:
    raise ImportError(f"linattn.dask needs {error.name}: pip install 'linattn[dask]'") from error

from . import _blocks, _check, _mapped, feature_maps
from ._operator import Recurrence
from ._state import State

_attention, _delta, _gated, _gated_delta, _dplr = (
    import_module(f"linattn.{name}")  # the package has functions of these names
    for name in ("attention", "delta", "gated", "gated_delta", "dplr")
)
_ALL = _blocks.RECURRENCES | {"noncausal": _attention.NONCAUSAL}

__all__ = [
    "causal",
    "causal_backward",
    "delta",
    "delta_backward",
    "dplr",
    "dplr_backward",
    "gated",
    "gated_backward",
    "gated_delta",
    "gated_delta_backward",
    "noncausal",
    "noncausal_backward",
]


def _lazily(function: Any) -> Any:
    """A function of the package whose first operand becomes a dask array."""

    @wraps(function)
    def lazy(first: Any, *others: Any, **options: Any) -> Any:
        return function(da.asarray(first), *others, **options)

    return lazy


causal, causal_backward = map(_lazily, (_attention.causal, _attention.causal_backward))
noncausal, noncausal_backward = map(_lazily, (_attention.noncausal, _attention.noncausal_backward))
delta, delta_backward = map(_lazily, (_delta.delta, _delta.delta_backward))
gated, gated_backward = map(_lazily, (_gated.gated, _gated.gated_backward))
gated_delta, gated_delta_backward = map(
    _lazily, (_gated_delta.gated_delta, _gated_delta.gated_delta_backward)
)
dplr, dplr_backward = map(_lazily, (_dplr.dplr, _dplr.dplr_backward))


class _Call:
    """The operands of a call in blocks: leading axes and tokens in the same chunks."""

    def __init__(
        self, r: Recurrence, method: str, operands: Sequence[Any], options: dict[str, Any],
        key_lengths: Any, cu_seqlens: Any, grad_out: Any = None,
    ) -> None:  # fmt: skip
        self.r, self.name, self.options = r, r.names[method], options
        self.cu_seqlens = None if cu_seqlens is None else np.asarray(cu_seqlens)
        if not r.cross:
            _blocks.check(self.name, options["feature_map"], options.get("normalize", False))
        given = [x if x is None or hasattr(x, "dtype") else np.asarray(x) for x in operands]
        metas: tuple[Any, ...] = tuple(None if x is None else _meta(x) for x in given)
        call = r._read(self.name, metas)
        _check.lookup(self.name, r._whole.names, call.variant, _known(options["feature_map"]),
                      options.get("normalize", False))  # fmt: skip
        _check.numbers(self.name, call.typed, options["scale"], options.get("eps", 0.0), True)
        self.shape, self.batch = call.shape, call.shape[:-2]
        self.dtype = _check.result_dtype(*call.typed)
        self.state_dtype = _check.state_dtype(*call.typed)
        phi = feature_maps.get(options["feature_map"])
        self.f, self.m = phi.features(metas[0].shape[-1]), self.shape[-1]
        if grad_out is not None:
            meta = _check.cotangent(self.name, _meta(grad_out), self.shape)
            grad_out = da.broadcast_to(da.asarray(grad_out), meta.shape)
        if key_lengths is not None:
            if not isinstance(key_lengths, da.Array):
                keys = metas[1].shape[-2]
                key_lengths = _check.key_lengths(self.name, key_lengths, keys, self.batch)
            key_lengths = da.asarray(key_lengths)
        self.given = given
        self._ranks(given)
        self._chunk([*given, grad_out, key_lengths])

    def _ranks(self, given: Sequence[Any]) -> None:
        """How many axes of each operand are its own, and which of them are tokens."""
        axes = max(x.ndim for x in given[:3])
        self.ranks = [2, 2, 2]
        for extra, x in zip(self.r.extras, given[3:], strict=True):
            wide = x is not None and bool(extra.channels) and x.ndim >= axes
            self.ranks.append(len(extra.dims) + wide)
        self.has_tokens = [True] * 3 + ["n" in extra.dims for extra in self.r.extras]

    def _chunk(self, arrays: list[Any]) -> None:
        """All as dask arrays of the same chunks, with all leading axes, of length 1 or more."""
        lead = len(self.batch)
        tokens = {"q": "n", "k": "s" if self.r.cross else "n"}
        ranks = [*self.ranks, 2, 0]
        has_tokens = [*self.has_tokens, True, False]
        arguments: list[Any] = []
        for i, (x, rank, by_token) in enumerate(zip(arrays, ranks, has_tokens, strict=True)):
            if x is None:
                continue
            x = da.asarray(x)
            if x.ndim < rank:  # one number for all tokens
                x = da.broadcast_to(x, self.shape[-2 : -2 + rank] if rank == 1 else x.shape)
            x = x[(None,) * (lead - (x.ndim - rank))]
            own = list(range(lead, lead + rank))
            names = [f"lead{j}" if x.shape[j] > 1 else f"one{i}.{j}" for j in range(lead)]
            for j in own:
                is_token = by_token and j == lead
                names.append(tokens["k" if i in (1, 2) else "q"] if is_token else f"own{i}.{j}")
                if not is_token and x.numblocks[j] > 1:
                    raise ValueError(
                        f"{self.name}: an operand of shape {x.shape} is in chunks of "
                        f"{x.chunks[j]} along axis {j}; expected one chunk along its width: "
                        "x.rechunk({-1: -1})"
                    )
            arrays[i] = x
            arguments += [x, names]
        _, unified = da.core.unify_chunks(*arguments)
        unified = iter(unified)
        arrays = [None if x is None else next(unified) for x in arrays]
        *self.arrays, self.grad, self.lengths = arrays
        q, k = self.arrays[:2]
        whole = [x for x in arrays if x is not None]
        self.lead = tuple(
            max((x.chunks[j] for x in whole), key=lambda c: (sum(c), len(c))) for j in range(lead)
        )
        self.tokens = q.chunks[lead]
        self.keys = k.chunks[lead]
        if self.cu_seqlens is not None and len(self.tokens) > 1:
            raise ValueError(
                f"{self.name}: q is in chunks of {self.tokens} tokens; expected one chunk with "
                "cu_seqlens, whose sequences are its blocks already"
            )
        self.blocks = [None if x is None else x.to_delayed() for x in arrays]
        self.begin = np.cumsum([0, *self.keys])

    def positions(self) -> list[tuple[int, ...]]:
        """Those of blocks along the leading axes."""
        return list(product(*(range(len(c)) for c in self.lead)))

    def _at(self, blocks: Any, position: tuple[int, ...], *more: int) -> Any:
        """A block; an axis of length 1 has one for all."""
        where = tuple(min(i, size - 1) for i, size in zip(position, blocks.shape, strict=False))
        rest = blocks.shape[len(where) + len(more) :]
        return blocks[(*where, *more, *(0 for _ in rest))]

    def operands(self, position: tuple[int, ...], j: int) -> list[Any]:
        """Those of the block of tokens j."""
        return [
            None if x is None else self._at(x, position, *([j] if by_token else []))
            for x, by_token in zip(self.blocks, self.has_tokens, strict=False)
        ]

    def grad_out(self, position: tuple[int, ...], j: int) -> Any:
        return self._at(self.blocks[-2], position, j)

    def key_lengths(self, position: tuple[int, ...], j: int) -> Any:
        """How many of a block's tokens have keys."""
        if self.blocks[-1] is None:
            return None
        lengths = self._at(self.blocks[-1], position)
        return _task(_clip, lengths, int(self.begin[j]), self.keys[j])

    def state(self, field: str, state: State | None) -> Any:
        """By position, the delayed fields of a state that was given, or None."""
        if state is None:
            return lambda position: None
        r = () if self.cu_seqlens is None else (len(self.cu_seqlens) - 1,)
        metas = State(*(None if x is None else _meta(x) for x in state))
        normalize = self.options.get("normalize", False)
        _check.state(self.name, field, metas, self.batch, (*r, self.f, self.m), self.state_dtype,
                     normalize)  # fmt: skip
        blocks = []
        for x, own in zip(state[:2], (2 + len(r), 1 + len(r)), strict=True):
            if x is None:
                continue
            x = da.asarray(x)
            x = x[(None,) * (len(self.batch) - (x.ndim - own))]
            chunks = [c if size > 1 else (1,) for c, size in zip(self.lead, x.shape, strict=False)]
            blocks.append(x.rechunk((*chunks, *((size,) for size in x.shape[-own:]))).to_delayed())
        return lambda position: _task(_state, *(self._at(x, position) for x in blocks))

    def assemble(self, parts: dict[tuple[int, ...], Any], like: str, core: Sequence[Any],
                 dtype: Any, lead: Any = None) -> Any:  # fmt: skip
        """A dask array of delayed blocks by position; core are the chunks of the other axes."""
        chunks = (*(self.lead if lead is None else lead), *core)
        name = f"linattn-{like}-{tokenize(*(x.key for x in parts.values()))}"
        count = len(chunks)
        graph: Any = {
            (name, *at, *(0 for _ in range(count - len(at)))): x.key for at, x in parts.items()
        }
        whole = HighLevelGraph.from_collections(name, graph, dependencies=list(parts.values()))
        return da.Array(whole, name, chunks, dtype=dtype)

    def assemble_state(self, parts: dict[tuple[int, ...], Any], r: Any = ()) -> State:
        """A State of dask arrays from delayed ones."""
        f, m = (self.f,), (self.m,)
        r = tuple((size,) for size in r)
        s = {at: _task(_field, x, 0) for at, x in parts.items()}
        if not self.options.get("normalize", False):
            return State(self.assemble(s, "s", (*r, f, m), self.state_dtype))
        z = {at: _task(_field, x, 1) for at, x in parts.items()}
        return State(
            self.assemble(s, "s", (*r, f, m), self.state_dtype),
            self.assemble(z, "z", (*r, f), self.state_dtype),
        )


def forward(
    r: Recurrence, operands: Sequence[Any], *, key_lengths: Any = None, cu_seqlens: Any = None,
    initial_state: State | None = None, return_state: bool = False, out: Any = None,
    **options: Any,
) -> Any:  # fmt: skip
    """`Recurrence.forward` on dask arrays."""
    if out is not None:
        raise TypeError(f"{r.name}: out is given; expected None with dask arrays, which are lazy")
    call = _Call(r, "forward", operands, options, key_lengths, cu_seqlens)
    if r.cross:
        return _forward_over_all(call)
    start = call.state("initial_state", initial_state)
    parts, ends = {}, {}
    for at in call.positions():
        states = _states(call, at, start(at))
        for j, state in enumerate(states):
            end = return_state and j == len(states) - 1
            result = _task(_forward,
                r.name, call.operands(at, j), call.key_lengths(at, j), state, call.cu_seqlens,
                end, options,
            )  # fmt: skip
            parts[(*at, j)] = _task(_field, result, 0) if end else result
            if end:
                ends[at] = _task(_field, result, 1)
    o = call.assemble(parts, r.name, (call.tokens, (call.m,)), call.dtype)
    if not return_state:
        return o
    packed = () if call.cu_seqlens is None else (len(call.cu_seqlens) - 1,)
    return o, call.assemble_state(ends, packed)


def _states(call: _Call, at: tuple[int, ...], start: Any) -> list[Any]:
    """The state before each block."""
    count = len(call.tokens)
    elements = [
        _task(_element, call.r.name, call.operands(at, j), call.key_lengths(at, j), call.options)
        for j in range(count - 1)
    ]
    return [start, *(_task(_blocks.after, start, x) for x in _blocks.scan(elements, _composed))]


def backward(
    r: Recurrence, operands: Sequence[Any], grad_out: Any, *, key_lengths: Any = None,
    cu_seqlens: Any = None, initial_state: State | None = None, grad_state: State | None = None,
    **options: Any,
) -> Any:  # fmt: skip
    """`Recurrence.backward` on dask arrays."""
    call = _Call(r, "backward", operands, options, key_lengths, cu_seqlens, grad_out)
    if r.cross:
        return _backward_over_all(call)
    start, last = call.state("initial_state", initial_state), call.state("grad_state", grad_state)
    parts: list[dict[Any, Any]] = [{} for x in call.arrays]
    starts = {}
    for at in call.positions():
        states = _states(call, at, start(at))
        grads = _end_gradients(call, at, states, last(at))
        for j, (state, grad) in enumerate(zip(states, grads, strict=True)):
            result = _gradients_of(call, at, j, state, grad)
            for i, x in enumerate(call.arrays):
                if x is not None:
                    parts[i][(*at, j)] = _task(_field, result, i)
            if j == 0:
                starts[at] = _task(_field, result, len(call.arrays))
    first = _collected(call, parts, call.given)
    if initial_state is None and grad_state is None:
        return first
    packed = () if call.cu_seqlens is None else (len(call.cu_seqlens) - 1,)
    state = call.assemble_state(starts, packed)
    if initial_state is not None:
        state = State(*(
            None if x is None else _summed(x, np.shape(y))
            for x, y in zip(state, initial_state, strict=True)
        ))  # fmt: skip
    return *first, state


def _gradients_of(call: _Call, at: tuple[int, ...], j: int, state: Any, grad: Any) -> Any:
    return _task(_backward,
        call.r.name, call.operands(at, j), call.grad_out(at, j), call.key_lengths(at, j), state,
        grad, call.cu_seqlens, call.options,
    )  # fmt: skip


def _end_gradients(call: _Call, at: tuple[int, ...], states: list[Any], last: Any) -> list[Any]:
    """The gradient with respect to the state after each block."""
    elements = []
    for j in range(len(states) - 1, 0, -1):
        result = _gradients_of(call, at, j, states[j], None)
        block = _task(
            _element, call.r.name, call.operands(at, j), call.key_lengths(at, j), call.options
        )
        elements.append(_task(_blocks.turned, block, _task(_field, result, len(call.arrays))))
    grads = [last, *(_task(_blocks.after, last, x) for x in _blocks.scan(elements, _composed))]
    return grads[::-1]


def _forward_over_all(call: _Call) -> Any:
    parts = {}
    for at in call.positions():
        state = _total(call, at)
        for j in range(len(call.tokens)):
            parts[(*at, j)] = _task(_read, _query(call, at, j), state, call.dtype, call.options)
    return call.assemble(parts, call.r.name, (call.tokens, (call.m,)), call.dtype)


def _query(call: _Call, at: tuple[int, ...], j: int) -> Any:
    return call._at(call.blocks[0], at, j)


def _keys(call: _Call, at: tuple[int, ...], j: int) -> list[Any]:
    return [call._at(x, at, j) for x in call.blocks[1:3]]


def _total(call: _Call, at: tuple[int, ...]) -> Any:
    """The sums over all keys."""
    sums = [
        _task(_element_over_all, *_keys(call, at, j), call.key_lengths(at, j), call.options)
        for j in range(len(call.keys))
    ]
    return _task(_blocks.after, None, _reduced(sums, _composed))


def _backward_over_all(call: _Call) -> Any:
    parts: list[dict[Any, Any]] = [{}, {}, {}]
    for at in call.positions():
        state = _total(call, at)
        results = [
            _task(_read_backward, _query(call, at, j), state, call.grad_out(at, j), call.options)
            for j in range(len(call.tokens))
        ]
        for j, result in enumerate(results):
            parts[0][(*at, j)] = _task(_field, result, 0)
        grad = _reduced([_task(_field, x, 1) for x in results], _added)
        for j in range(len(call.keys)):
            result = _task(
                _sums_backward, *_keys(call, at, j), grad, call.key_lengths(at, j), call.options
            )
            for i in (0, 1):
                parts[1 + i][(*at, j)] = _task(_field, result, i)
    return _collected(call, parts, call.given)


def _reduced(parts: list[Any], combine: Any) -> Any:
    while len(parts) > 1:
        parts = [
            combine(*parts[i : i + 2]) if i + 1 < len(parts) else parts[i]
            for i in range(0, len(parts), 2)
        ]
    return parts[0]


def _collected(call: _Call, parts: list[dict[Any, Any]], given: Sequence[Any]) -> tuple[Any, ...]:
    """Gradients in the shapes that the operands came in."""
    grads = []
    for i, x in enumerate(call.arrays):
        if x is None:
            continue
        lead = len(call.batch)
        by_token = call.has_tokens[i]
        blocks: dict[Any, Any] = {}
        for at, part in parts[i].items():
            *front, j = at
            where = tuple(min(p, size - 1) for p, size in zip(front, x.numblocks, strict=False))
            blocks.setdefault((*where, j) if by_token else where, []).append(part)
        sums = {at: _reduced(same, _added) for at, same in blocks.items()}
        grad = call.assemble(sums, f"d{i}", x.chunks[lead:], _gradient_dtype(call, i),
                             x.chunks[:lead])  # fmt: skip
        grads.append(_summed(grad, given[i].shape))
    return tuple(grads)


def _gradient_dtype(call: _Call, i: int) -> Any:
    wide = i >= 3 and call.r.extras[i - 3].wide
    return call.state_dtype if wide else call.dtype


def _summed(x: Any, shape: Sequence[int]) -> Any:
    """x summed over what was broadcast, in that shape."""
    extra = x.ndim - len(shape)
    axes = tuple(
        j for j in range(x.ndim)
        if x.shape[j] != 1 and (j < extra or shape[j - extra] == 1)
    )  # fmt: skip
    if axes:
        x = x.sum(axis=axes, keepdims=True, dtype=x.dtype)
    return x.reshape(tuple(shape)) if x.shape != tuple(shape) else x


def _meta(x: Any) -> Any:
    """An array of that shape and dtype, of no memory, for the checks."""
    return np.broadcast_to(np.empty((), x.dtype), x.shape)


def _known(feature_map: Any) -> Any:
    """A name that kernels know, for the checks."""
    return "identity" if _mapped.outside(feature_map) else feature_map


# --- what workers run -----------------------------------------------------------------


def _task(function: Any, *args: Any) -> Any:
    """A call that a worker makes; the function is one that pickle finds by its name."""
    return delayed(function, pure=True)(*args)


def _composed(first: Any, second: Any) -> Any:
    return _task(_blocks.compose, first, second)


def _added(x: Any, y: Any) -> Any:
    return _task(_add, x, y)


def _element(name: str, operands: Any, key_lengths: Any, options: Any) -> Any:
    return _blocks.element(name, tuple(operands), key_lengths, **options)


def _element_over_all(k: Any, v: Any, key_lengths: Any, options: Any) -> Any:
    return _blocks.element("causal", (k, k, v), key_lengths, **options)


def _forward(
    name: str, operands: Any, key_lengths: Any, state: Any, cu_seqlens: Any, end: bool, options: Any
) -> Any:
    return _ALL[name].forward(
        tuple(operands), key_lengths=key_lengths, cu_seqlens=cu_seqlens, initial_state=state,
        return_state=end, **options,
    )  # fmt: skip


def _backward(
    name: str, operands: Any, grad: Any, key_lengths: Any, state: Any, grad_state: Any,
    cu_seqlens: Any, options: Any,
) -> Any:  # fmt: skip
    """The gradient of each operand, None for those left out, and of the state before."""
    r = _ALL[name]
    if state is None:
        sequences = None if cu_seqlens is None else len(cu_seqlens) - 1
        state = _blocks.empty_state(r, tuple(operands), sequences, **options)
    *grads, start = r.backward(
        tuple(operands), grad, key_lengths=key_lengths, cu_seqlens=cu_seqlens,
        initial_state=state, grad_state=grad_state, **options,
    )  # fmt: skip
    found = iter(grads)
    return *(None if x is None else next(found) for x in operands), start


def _read(q: Any, state: Any, dtype: Any, options: Any) -> Any:
    return _blocks.read(q, state, **options).astype(dtype, copy=False)


def _read_backward(q: Any, state: Any, grad: Any, options: Any) -> Any:
    return _blocks.read_backward(q, state, grad, **options)


def _sums_backward(k: Any, v: Any, grad: Any, key_lengths: Any, options: Any) -> Any:
    return _blocks.sums_backward(k, v, grad, key_lengths, **options)


def _clip(lengths: Any, begin: int, size: int) -> Any:
    return np.clip(np.asarray(lengths) - begin, 0, size)


def _state(s: Any, z: Any = None) -> State:
    return State(s, z)


def _field(x: Any, i: int) -> Any:
    return x[i]


def _add(x: Any, y: Any) -> Any:
    if isinstance(x, State):
        return State(*(None if a is None else a + b for a, b in zip(x, y, strict=True)))
    return x + y
