"""A recurrence as its rows in operators.def tell of it: gufuncs, options, states."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from operator import getitem
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from .._core import checks, gradient_sums
from .._core.layout import Call, Layout
from .._linattn import operators
from .._states import state_arrays
from .._states.state_arrays import State
from ..feature_maps import PositiveRandomFeatures
from ..feature_maps._names import map_of
from . import mapped, whole_blocks
from .interface import Interface
from .plain import Plain
from .tables import Key, Table

if TYPE_CHECKING:
    from typing import TypeAlias

    from .._types import Array, Bool, DType, Shape
    from .interface import Operands

    Transition: TypeAlias = Literal["matrix", "decay", "elementwise", "identity"]


class Kernels(Interface):
    """The kernels of a recurrence.

    Parameters
    ----------
    name : str
        Of the public function and of the kernel in operators.def, which has all else.
    transition : {'matrix', 'decay', 'elementwise', 'identity'}, or None
        What a block of tokens multiplies a state by, so that sequences can be cut into blocks
        (`_blocks.block_scan`): any matrix, the exponentials of the sums of g, a factor for each
        number of the state, or nothing.  None if sequences cannot be cut.
    public : dict
        The names of operands and options that are called otherwise in operators.def.
    decay : callable, optional
        Of a recurrence under a log scale, which is cut into blocks by it:
        ``decay(operands, there, xp)`` is the logarithm of what a sequence of tokens multiplies the
        memory by; ``there`` (..., n), or None, says which tokens have a key.
    first : float, default -inf
        log_scale of the state before all tokens.
    root_scale : bool, default False
        Whether a scale of None stands for 1 / sqrt(d).
    one_array : bool, default False
        Whether a state is an array, not a named tuple.
    holder : type, default State
        The named tuple otherwise, with the fields of the row.
    **letters : dict
        ``one_less``, ``fixed`` and ``written`` of `Layout`.
    """

    def __init__(
        self,
        name: str,
        *,
        transition: Transition | None = "matrix",
        public: Mapping[str, str] = MappingProxyType({}),
        decay: Callable[[Mapping[str, Any], Any, Any], Any] | None = None,
        first: float = -math.inf,
        root_scale: bool = False,
        one_array: bool = False,
        holder: type[Any] = State,
        **letters: Mapping[str, Any],
    ) -> None:
        row, self.name = operators[name], name
        self.transition = "scaled" if decay is not None else transition
        self.decay, self.first, self.root_scale = decay, first, root_scale
        self.layout = Layout.of(name, public, **letters)
        self.one_array, self.holder = one_array, holder
        #: Whether tokens may be in blocks that read one state (`whole_blocks`).
        self.blocks: bool = row["blocks"]
        self.operands = self.layout.operands
        self.extras = self.operands[self.layout.leading :]
        self.mapped, self.normalizer = row["maps"], row["normalizer"]
        self.compensated = row["compensated"]
        self.fields = dict(row["state"] or operators["causal"]["state"])
        self.stacked = transition == "matrix" and self.fields.get("z") == self.fields["s"]
        #: Those that a state has, by ``normalize``.
        self.present = {
            normalize: {
                field: letters
                for field, letters in self.fields.items()
                if field != "z" or normalize or not self.normalizer
            }
            for normalize in (False, True)
        }
        #: How to add an axis of one sequence to each of them, and how to drop it.
        self._add, self._drop = (
            {
                normalize: [(..., one, *(slice(None),) * len(own)) for own in fields.values()]
                for normalize, fields in self.present.items()
            }
            for one in (None, 0)
        )
        self.keys = row["key_lengths"]  #: whether it takes key_lengths
        self.cross = not row["state"]  #: whether every query sees every key: there is no step
        self.scaled = "scale" in row["numbers"]
        step = next((x for x, y in operators.items() if y["step_of"] == name), f"{name}_step")
        self.names = {"forward": name, "backward": f"{name}_backward", "step": step}
        #: Options that are True or False, by method: the numbers of the table but scale and eps.
        self.flags = {method: _flags(kernel, public) for method, kernel in self.names.items()}
        found = {x: y in operators and operators[y]["half_states"] for x, y in self.names.items()}
        self.half_states = found | {"backward": found["forward"]}  # a gradient converts them
        self._plain = Plain(self)
        form = "_keys" if self.cross else "_state"
        self._stateless = self._gufuncs(name + "{}", self.blocks)
        self._stateful = self._gufuncs(name + "{}" + form, self.blocks)
        self._stateless_backward = self._gufuncs(name + "{}_backward", self.blocks)
        self._stateful_backward = self._gufuncs(name + "{}" + form + "_backward", self.blocks)
        if not self.cross:
            stem, end, _ = step.partition("_step")
            self._step = self._gufuncs(f"_{stem}{{}}{end}", False)
            self.step_op = [*operators].index(step)  #: as `fast_step` takes it
        plain = {"s", "z"} if self.normalizer else {"s"}
        #: Whether `fast_step` may know its steps: their states are plain, without options.
        self.plain_step = not (self.cross or self.flags["step"]) and {*self.fields} <= plain

    def _gufuncs(self, form: str, blocks: bool) -> Table:
        return Table(
            form, [x.suffix for x in self.operands if x.suffix], mapped=self.mapped,
            normalizer=self.normalizer, blocks=whole_blocks.SUFFIX if blocks else "",
            apart=[x.suffix for x in self.operands if not x.has_tokens],
        )  # fmt: skip

    def _key(
        self, function: str, call: Call, feature_map: Any, normalize: Any, block: int | None
    ) -> Key:
        """The key of a call in the tables of its gufuncs, checked."""
        variant = call.variant + whole_blocks.suffix(block)
        return self._stateless.key(function, variant, feature_map, normalize)

    def tables(self) -> Iterator[tuple[str, bool, Table]]:
        """Its gufuncs: the method, whether they take lengths and states, and their names."""
        yield "forward", False, self._stateless
        yield "forward", True, self._stateful
        yield "backward", False, self._stateless_backward
        yield "backward", True, self._stateful_backward
        if not self.cross:
            yield "step", False, self._step

    def state_cores(
        self, function: str, call: Call, options: Mapping[str, Any]
    ) -> dict[str, Shape]:
        phi = map_of(function, options.get("feature_map", "identity"))
        normalize = checks.flag(function, "normalize", options.get("normalize", True))
        return self.cores(
            call.fit.sizes, normalize, features=phi.features,
            rescaled=isinstance(phi, PositiveRandomFeatures),
        )  # fmt: skip

    def checked(
        self, function: str, operands: Operands, options: Mapping[str, Any]
    ) -> tuple[Call, dict[str, Shape]]:
        flags = dict(options)
        feature_map = flags.pop("feature_map", "identity")
        scale, eps = flags.pop("scale", 1.0), flags.pop("eps", 0.0)
        scale = self.default_scale(operands) if scale is None else scale
        normalize = checks.flag(function, "normalize", flags.pop("normalize", False))
        outside = mapped.outside(feature_map)
        mapped.refuse_rescaling(function, feature_map, normalize)
        call = self.layout.read(function, operands)
        self._stateless.key(
            function, call.variant, "identity" if outside else feature_map, normalize
        )
        checks.numbers(function, call.typed, scale, eps, True)
        checks.flags(function, tuple(flags), flags, call.typed)
        return call, self.state_cores(function, call, {"normalize": normalize, **options})

    def default_scale(self, operands: Operands) -> float | None:
        """What a scale of None stands for; None if it is refused."""
        shape = np.shape(operands[0])
        return float(max(shape[-1], 1) ** -0.5) if self.root_scale and shape else None

    def _numbers(
        self,
        method: str,
        typed: tuple[Any, ...],
        scale: Any,
        eps: Any,
        normalize: bool,
        flags: dict[str, Any],
        block: int | None = None,
    ) -> tuple[Any, ...]:
        """The numbers of a call, in the table's order: scale, eps, flags, then the block."""
        function, names = self.names[method], self.flags[method]
        first = checks.numbers(function, typed, scale, eps, normalize) if self.scaled else ()
        if names:
            first = (*first, *checks.flags(function, names, flags, typed))
        return first if block is None else (*first, *whole_blocks.index(block))

    def _sequences(
        self, function: str, call: Call, cu_seqlens: Any, key_lengths: Any
    ) -> tuple[Any, tuple[Any, ...]]:
        """The packed sequences, None where there is no state, and operands that tell of them."""
        if self.cross:
            keys = call.fit.sizes["s"]
            return None, (state_arrays.checked_lengths(function, key_lengths, keys, call.batch),)
        fit = call.fit
        packing = state_arrays.sequences(
            function, fit.sizes["n"], fit.batch, cu_seqlens, key_lengths
        )
        return packing, packing[: 2 + self.keys]

    def _state(
        self,
        function: str,
        name: str,
        state: Any,
        packing: state_arrays.Sequences | None,
        call: Call,
        normalize: bool,
        dtype: DType,
        *,
        wanted: bool,
    ) -> tuple[Any, ...]:
        """The arrays of a state of that name; none where there is no state.

        ``wanted`` says whether a state, or its gradient, is returned.
        """
        if packing is None:
            return ()
        sizes = call.fit.sizes
        if state is None:  # left out: gufuncs take zeros for it
            fields = self.present[normalize]
            if wanted and self.layout.one_less:  # sizes that no operand has
                cores = self.cores(sizes, normalize, packing.r)
                return tuple([np.zeros(x, dtype) for x in cores.values()])
            if "log_scale" not in fields or self.first == 0 or name != "initial_state":
                return (...,) * len(fields)
            shape = self.cores(sizes, normalize, packing.r)["log_scale"]
            first = np.full(shape, self.first, dtype)
            return tuple([first if x == "log_scale" else ... for x in fields])
        cores = self.cores(sizes, normalize, *(packing.r,) * packing.packed)
        halves = self.half_states["forward"]
        given = self.checked_state(function, name, state, cores, call.batch, dtype, halves)
        arrays = tuple(given.values())
        if halves and function != self.names["forward"]:
            arrays = tuple([x.astype(dtype, copy=False) for x in arrays])
        return arrays if packing.packed else self.packed(arrays, normalize)

    def packed(self, arrays: Iterable[Any], normalize: bool) -> tuple[Array, ...]:
        """The arrays of a state with an axis of one sequence, as gufuncs take them."""
        return tuple(map(getitem, arrays, self._add[normalize]))

    def unpacked(self, arrays: Iterable[Any], normalize: bool) -> Any:
        """The state of such arrays, without that axis."""
        return self.state_of(map(getitem, arrays, self._drop[normalize]), normalize)

    def state_of(self, arrays: Iterable[Array], normalize: Bool) -> Any:
        """The state of these arrays."""
        return self.public(dict(zip(self.present[bool(normalize)], arrays, strict=False)))

    def _after(
        self, packing: state_arrays.Sequences, arrays: Iterable[Any], normalize: bool
    ) -> Any:
        """The state of the arrays that a gufunc returned for these sequences."""
        return (self.state_of if packing.packed else self.unpacked)(arrays, normalize)

    def over_sequences(self, grads: Iterable[Array], operands: Operands) -> list[Array]:
        """Gradients of the operands that are given, summed over sequences: those of operands that
        sequences share have an axis of them."""
        rows = [row for row, x in zip(self.operands, operands, strict=True) if x is not None]
        return [
            x if "n" in row.dims else gradient_sums.over_axis(x, -1 - len(row.dims))
            for row, x in zip(rows, grads, strict=True)
        ]


def _flags(name: str, public: Mapping[str, str]) -> tuple[str, ...]:
    """The options of an operator that are True or False, or an activation."""
    numbers = operators[name]["numbers"] if name in operators else ()
    return tuple(public.get(x, x) for x in numbers if x not in ("scale", "eps"))
