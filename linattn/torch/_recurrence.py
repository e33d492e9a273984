"""A recurrence over tokens as operators of PyTorch, from its description.

Of each `linattn._operator.Recurrence` come an operator without states and one with, their
gradients, and the step, new and in place.  All call its NumPy form.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from .. import _check
from .._check import shape_alone
from .._initial import NAME, state_of
from .._operator import MAPS, Recurrence
from .._state import State
from . import _maps, _tensors
from ._library import Operator
from ._tensors import array, maybe_array, tensor, tensors, threads, work_dtype


class TensorRecurrence:
    """Forward and step of a recurrence on tensors, differentiable."""

    def __init__(self, recurrence: Recurrence) -> None:
        r = self.r = recurrence
        normalized = ("z", "log_scale") if r.normalizer else ()
        self.operands = ("q", "k", "v", *(extra.name for extra in r.extras))
        #: Fields of a state, each of which has a gradient.
        self.fields = () if r.cross else ("s", *normalized)
        optional = {extra.name for extra in r.extras if extra.optional}
        operands = [f"Tensor{'?' * (x in optional)} {x}" for x in self.operands]
        options = ["str feature_map", "Tensor? omega"] if r.mapped else []
        options += ["bool normalize", "float eps"] if r.normalizer else []
        options += ["float scale"]
        sequences = ["Tensor? key_lengths"] + ([] if r.cross else ["Tensor? cu_seqlens"])
        states = [f"Tensor? {x}" for x in self.fields]
        self.names = [x.split()[-1] for x in operands + options + sequences + states]
        kept = [extra.name for extra in r.extras if extra.state_dtype]
        cast = [x for x in self.operands if x not in kept]
        count = len(self.operands)

        def many(n: int) -> str:
            return f"({', '.join(['Tensor'] * n)})"

        whole = operands + options + sequences
        self.whole = Operator(
            r.name, whole, "Tensor", self._run, self._fake,
            ranks=self._ranks, gradient=self._gradient, cast=cast,
        )  # fmt: skip
        self.whole_backward = Operator(
            f"{r.name}_backward", ["Tensor grad_out", *whole], many(count),
            self._run_backward, self._fake_backward,
            ranks=lambda grad, *axes: (2, *self._ranks(*axes)), like=self.operands,
        )  # fmt: skip
        if r.cross:
            return
        grads = ["Tensor grad_out", *(f"Tensor? grad_{x}" for x in self.fields)]
        self.parts = Operator(
            f"{r.name}_state", whole + states, many(1 + len(self.fields)),
            self._run, self._fake,
            ranks=self._ranks, gradient=self._gradient, cast=cast,
        )  # fmt: skip
        self.parts_backward = Operator(
            f"{r.name}_state_backward", grads + whole + states, many(count + len(self.fields)),
            self._run_backward, self._fake_backward,
            ranks=self._ranks_backward, like=(*self.operands, *self.fields),
        )  # fmt: skip
        step = r.names["step"]
        self.step_names = [x.split()[-1] for x in operands + options + states]
        self.new_step = Operator(
            step, operands + options + states, many(1 + len(self.fields)),
            self._run_step, self._fake_step,
            ranks=self._ranks_step, gradient=self._gradient_step, cast=cast,
        )  # fmt: skip
        written = [f"Tensor({x}!)? {y}" for x, y in zip("abc", self.fields, strict=False)]
        self.step_in_place = Operator(
            f"{step}_", operands + options + written, "Tensor",
            self._run_step_in_place, lambda *args: self._fake_step(*args)[0],
            ranks=self._ranks_step, cast=cast,
        )  # fmt: skip

    # --- what users call ---------------------------------------------------------

    def forward(
        self,
        operands: Sequence[Any],
        *,
        feature_map: Any = "identity",
        scale: float,
        normalize: bool = False,
        eps: float = 0.0,
        key_lengths: Any = None,
        cu_seqlens: Any = None,
        initial_state: State | None = None,
        return_state: bool = False,
    ) -> Any:
        """The output, and the state after the last token where it is asked for."""
        name = self.r.name
        if key_lengths is not None:
            key_lengths = _integers(name, "key_lengths", key_lengths, operands[0])
        if cu_seqlens is not None:
            cu_seqlens = _integers(name, "cu_seqlens", cu_seqlens, operands[0])
        args, narrow = self.arguments(
            name, operands, feature_map, normalize, eps, scale, key_lengths
        )
        args += [key_lengths] if self.r.cross else [key_lengths, cu_seqlens]
        if initial_state is None and not return_state:
            o = self.whole(*args)
            return o if narrow is None else o.to(narrow)
        state = self._state(name, "initial_state", initial_state, args[0], convert=True)
        o, *end = self.parts(*args, *state)
        o = o if narrow is None else o.to(narrow)
        return (o, self._result(end, normalize, args)) if return_state else o

    def step(
        self,
        operands: Sequence[Any],
        state: Any,
        *,
        feature_map: Any = "identity",
        scale: float,
        normalize: bool = False,
        eps: float = 0.0,
        in_place: bool = False,
    ) -> tuple[Tensor, State]:
        """The output of one token, and the state after it."""
        name = self.r.names["step"]
        args, narrow = self.arguments(name, operands, feature_map, normalize, eps, scale, None)
        fields = self._state(name, "state", state, args[0], convert=not in_place)
        if fields[0] is None:
            raise TypeError(f"{name}: state is None; expected a linattn.State(s, z)")
        if in_place:
            _tensors.check_in_place(name, (*args, *fields))
            o, after = self.step_in_place(*args, *fields), state
        else:
            o, *end = self.new_step(*args, *fields)
            after = self._result(end, normalize, args)
        return o if narrow is None else o.to(narrow), after

    def initial_state(
        self,
        operands: Sequence[Any],
        operator: str,
        whole: bool,
        *,
        feature_map: Any,
        normalize: bool,
        cu_seqlens: Any,
    ) -> State:
        """Before the first token of an operator, which takes all of them or one."""
        args = self._promoted(NAME, operands)
        for argument, x in zip(self.operands, args, strict=False):
            if isinstance(x, Tensor):
                _tensors.check(NAME, argument, x)
        phi = _maps.resolve(NAME, feature_map)
        k, v = args[1:3]
        dtype = work_dtype(v.dtype)

        def features(d: int) -> int:
            if isinstance(phi, (str, _maps.TensorMap)):
                return d if isinstance(phi, str) else phi.features(d)
            one = k[..., :1, :] if whole else k[..., None, :]
            with torch.no_grad():
                return int(phi(one.to(dtype)).shape[-1])

        def full(shape: Any, value: float, _: Any = None) -> Tensor:
            return v.new_full(shape, value, dtype=dtype)

        rescaled = isinstance(phi, _maps.TensorMap) and phi.rescaled
        if torch.compiler.is_compiling():  # sizes may be symbols, which no check of NumPy's reads
            named = dict(zip(self.operands, args, strict=False))
            lead = self._lead(named, step=not whole)
            if cu_seqlens is not None:
                lead = (*lead, len(cu_seqlens) - 1)
            z = (*lead, features(k.shape[-1]))
            s = full((*z, v.shape[-1]), 0.0)
            if not (self.r.normalizer and normalize):
                return State(s)
            return State(s, full(z, 0.0), full(z, -math.inf) if rescaled else None)
        return state_of(
            tuple(map(shape_alone, args)), operator, features, full, normalize=normalize,
            cu_seqlens=cu_seqlens, rescaled=rescaled,
            unmapped=None if isinstance(phi, str) else phi,
        )  # fmt: skip

    def arguments(
        self, name: str, operands: Sequence[Any], feature_map: Any, normalize: Any, eps: Any,
        scale: Any, key_lengths: Tensor | None,
    ) -> tuple[list[Any], torch.dtype | None]:  # fmt: skip
        """Operands and options as operators take them, a map that is no kernel's applied.

        Features of 16-bit tokens are of 32 bits; then the result's dtype comes as well.
        """
        args, narrow = self._promoted(name, operands), None
        normalize = _check.flag(name, "normalize", normalize)
        if self.r.mapped:
            phi = _maps.resolve(name, feature_map)
            if isinstance(phi, str):
                text, omega = phi, None
            elif isinstance(phi, _maps.TensorMap) and phi.rescaled and normalize:
                text, omega = phi.text, phi.directions(args[0])
            else:
                for argument, x in zip("qk", args, strict=False):
                    _tensors.check(name, argument, x)
                if key_lengths is not None:  # whatever stands behind is not to be mapped
                    places = torch.arange(args[1].shape[-2], device=args[1].device)
                    there = places < key_lengths[..., None]
                    args[1] = torch.where(there[..., None], args[1], 0)
                text, omega = "identity", None
                if args[0].dtype.itemsize == 2:
                    narrow = args[0].dtype
                    args = [x.float() if isinstance(x, Tensor) else x for x in args]
                if name == self.r.names["step"]:  # weights by head stand before the tokens' axis
                    args[:2] = (phi(x[..., None, :])[..., 0, :] for x in args[:2])
                else:
                    args[:2] = phi(args[0]), phi(args[1])
            args += [text, omega]
        if self.r.normalizer:
            args += [normalize, _number(name, "eps", eps)]
        return [*args, _number(name, "scale", scale)], narrow

    def _promoted(self, name: str, operands: Sequence[Any]) -> list[Any]:
        """The operands, those that have a say in it in one dtype."""
        q, k, v, *extras = operands
        kept = [False] * 3 + [extra.state_dtype for extra in self.r.extras]
        args = [q, k, v, *extras]
        dtypes = []
        # A state needs not all.
        for i, (argument, x) in enumerate(zip(self.operands, args, strict=False)):
            if x is None and i >= 3 and self.r.extras[i - 3].optional:
                continue
            if isinstance(x, (int, float)) and i >= 3:  # as weak as Python's numbers are
                number = _check.real(name, argument, x)
                args[i] = torch.tensor(number, dtype=work_dtype(v.dtype), device=v.device)
                continue
            if not isinstance(x, Tensor) or x.dtype not in _tensors.REAL:
                _tensors.check(name, argument, x)
            if not kept[i]:
                dtypes.append(x.dtype)
        dtype = _tensors.promotion(dtypes)
        for i, x in enumerate(args):
            if isinstance(x, Tensor) and x.dtype is not dtype:
                if not kept[i]:
                    args[i] = x.to(dtype)
                elif not x.dtype.is_floating_point and not x.dtype.is_complex:
                    args[i] = x.to(work_dtype(dtype))
        return args

    def _state(
        self, name: str, argument: str, state: Any, q: Tensor, *, convert: bool
    ) -> tuple[Tensor | None, ...]:
        """The fields of a state as operators take them."""
        if state is None:
            return (None,) * len(self.fields)
        if not isinstance(state, tuple) or not 2 <= len(state) <= 3:
            what = f"tuple of {len(state)}" if isinstance(state, tuple) else type(state).__name__
            raise TypeError(f"{name}: {argument} is a {what}; expected a linattn.State(s, z)")
        given = dict(zip(("s", "z", "log_scale"), state, strict=False))
        for field, x in given.items():
            there = x is not None or field == "s"
            if there and (not isinstance(x, Tensor) or x.dtype not in _tensors.REAL):
                _tensors.check(name, f"{argument}.{field}", x)
            if x is not None and field not in self.fields:
                raise ValueError(f"{name}: {argument}.{field} is given; expected None")
        fields = [given.get(field) for field in self.fields]
        if convert:
            dtype = work_dtype(q.dtype)
            fields = [x if x is None or x.dtype is dtype else x.to(dtype) for x in fields]
        return tuple(fields)

    def _result(self, fields: Sequence[Tensor], normalize: bool, args: Sequence[Any]) -> State:
        """A `State` of what an operator returned, where what there is not is an empty tensor."""
        s, *more = fields
        if not normalize:
            return State(s)
        rescaled = args[self.names.index("feature_map")] not in MAPS
        return State(s, more[0], more[1] if rescaled else None)

    # --- shapes ------------------------------------------------------------------

    def _named(self, args: Sequence[Any], names: Sequence[str] | None = None) -> dict[str, Any]:
        return dict(zip(names or self.names, args, strict=False))

    def _ranks(self, *axes: int | None, step: bool = False) -> list[int | None]:
        """The number of axes of each argument that are no leading ones."""
        token = 1 if step else 2
        named = self._named(axes, self.step_names if step else None)
        tokens = named["q"], named["k"], named["v"]
        packed = named.get("cu_seqlens") is not None
        own: dict[str, int | None] = dict.fromkeys(("q", "k", "v"), token)
        own |= {"key_lengths": 0, "s": 2 + packed, "z": 1 + packed, "log_scale": 1 + packed}
        for extra in self.r.extras:
            count = named[extra.name]
            own[extra.name] = (
                None if count is None else extra.own_axes(count, max(tokens), tokens=not step)
            )
        return [own.get(name) for name in named]

    def _ranks_step(self, *axes: int | None) -> list[int | None]:
        return self._ranks(*axes, step=True)

    def _ranks_backward(self, *axes: int | None) -> list[int | None]:
        count = 1 + len(self.fields)
        ranks = self._ranks(*axes[count:])
        own = dict(zip(self.names, ranks, strict=True))
        return [2, *(own[field] for field in self.fields), *ranks]

    def _fake(self, *args: Any, step: bool = False) -> Any:
        named = self._named(args, self.step_names if step else None)
        q, v = named["q"], named["v"]
        lead = self._lead(named, step)
        o = _like(v, (*lead, *([] if step else [q.shape[-2]]), v.shape[-1]))
        if "s" not in named:
            return o
        f, m, dtype = self._features(named), v.shape[-1], work_dtype(v.dtype)
        cu_seqlens = named.get("cu_seqlens")
        inner = lead if cu_seqlens is None else (*lead, cu_seqlens.shape[0] - 1)
        s = v.new_empty((*inner, f, m), dtype=dtype)
        if not self.r.normalizer:
            return o, s
        row, nothing = v.new_empty((*inner, f), dtype=dtype), _tensors.nothing()
        z = row if named["normalize"] else nothing.clone()
        return o, s, z, torch.empty_like(row) if named["omega"] is not None else nothing

    def _lead(self, named: dict[str, Any], step: bool) -> tuple[int, ...]:
        """The leading axes of the operands, broadcast."""
        tokens = named["q"], named["k"], named["v"]
        leads = [x.shape[: -1 if step else -2] for x in tokens]
        for extra in self.r.extras:
            x = named.get(extra.name)
            if x is not None:
                rank = extra.own_axes(x.ndim, max(y.ndim for y in tokens), tokens=not step)
                leads.append(x.shape[: max(x.ndim - rank, 0)])
        return torch.broadcast_shapes(*leads)

    def _features(self, named: dict[str, Any]) -> int:
        d = named["q"].shape[-1]
        omega = named.get("omega")
        if omega is None:
            return d
        return _maps.features(named["feature_map"], d, omega.shape[-1])

    def _fake_step(self, *args: Any) -> Any:
        return self._fake(*args, step=True)

    def _fake_backward(self, *args: Any) -> Any:
        args = args[self._grads(args) :]
        named = self._named(args)
        like = [*self.operands, *(self.fields if "s" in named else ())]
        full = self._fake(*args)
        grads = []
        for name in like:
            x = named[name]
            if x is None and name in self.fields:  # of zeros, with all leading axes
                x = full[1 + self.fields.index(name)]
            grads.append(_tensors.nothing() if x is None else x.new_empty(x.shape))
        return tuple(grads)

    def _grads(self, args: Sequence[Any]) -> int:
        """How many arguments of a gradient operator come before those of the forward one."""
        rest = len(self.names) - len(self.fields)
        return 1 if len(args) == 1 + rest else 1 + len(self.fields)

    # --- computing ---------------------------------------------------------------

    def _call(self, named: dict[str, Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Operands and options as the NumPy form takes them."""
        operands = tuple(maybe_array(named[name]) for name in self.operands)
        options = {
            "feature_map": _maps.restore(named["feature_map"], named["omega"])
            if self.r.mapped
            else "identity",
            "scale": named["scale"],
        }
        if self.r.normalizer:
            options |= {"normalize": named["normalize"], "eps": named["eps"]}
        for name in ("key_lengths", "cu_seqlens"):
            if named.get(name) is not None:
                options[name] = array(named[name])
        return operands, options

    def _arrays(self, named: dict[str, Any]) -> State | None:
        """A state as the NumPy form takes it."""
        fields: list[Any] = [maybe_array(named.get(x)) for x in ("s", "z", "log_scale")]
        return None if fields[0] is None else State(*fields)

    def _run(self, *args: Any) -> Any:
        named = self._named(args)
        operands, options = self._call(named)
        o = None
        if not named["v"].is_contiguous():
            o = _first(self._fake(*args))
            options["out"] = array(o)
        if "s" in named:
            options |= {"initial_state": self._arrays(named), "return_state": True}
        with threads():
            result = self.r.forward(operands, **options)
        if "s" not in named:
            return tensor(result) if o is None else o
        fields = result[1][: len(self.fields)]
        return tensor(result[0]) if o is None else o, *tensors(fields, (None,) * len(fields))

    def _run_backward(self, *args: Any) -> Any:
        count = self._grads(args)
        named = self._named(args[count:])
        operands, options = self._call(named)
        if count > 1:
            options["initial_state"] = self._arrays(named)
            options["grad_state"] = self._cotangent(named, args[1:count])
        with threads():
            grads = list(self.r.backward(operands, array(args[0]), **options))
        state = grads.pop() if count > 1 else None
        results = [None if named[name] is None else grads.pop(0) for name in self.operands]
        like = [named[name] for name in self.operands]
        if state is not None:
            results += state[: len(self.fields)]
            like += [named[name] for name in self.fields]
        return tensors(results, like)

    def _cotangent(self, named: dict[str, Any], grads: Sequence[Tensor | None]) -> State:
        """The gradient with respect to the final state, zeros where there is none."""
        shapes = self._fake(*(named[name] for name in self.names))[1:]
        there = (True, named.get("normalize", False), named.get("omega") is not None)
        fields = (
            None if not exists
            else array(torch.zeros_like(like) if grad is None else grad)
            for exists, grad, like in zip(there, grads, shapes, strict=False)
        )  # fmt: skip
        return State(*fields)

    def _run_step(self, *args: Any) -> Any:
        named = self._named(args, self.step_names)
        operands, options = self._call(named)
        state = self._arrays(named)
        with threads():
            o, state = self.r.step(operands, state, **options)
        fields = state[: len(self.fields)]
        return tensor(o), *tensors(fields, (None,) * len(fields))

    def _run_step_in_place(self, *args: Any) -> Tensor:
        named = self._named(args, self.step_names)
        operands, options = self._call(named)
        with threads():
            o, _ = self.r.step(operands, self._arrays(named), **options, in_place=True)
        return tensor(o)

    # --- gradients ---------------------------------------------------------------

    def _gradient(self, args: Sequence[Any], grads: Sequence[Tensor | None]) -> Any:
        named = self._named(args)
        grad_out = grads[0]
        if grad_out is None:
            grad_out = torch.zeros_like(_first(self._fake(*args)))
        if "s" not in named:
            found = dict(zip(self.operands, self.whole_backward(grad_out, *args), strict=True))
        else:
            last = [self._or_none(x) for x in grads[1 : 1 + len(self.fields)]]
            names = (*self.operands, *self.fields)
            found = dict(zip(names, self.parts_backward(grad_out, *last, *args), strict=True))
        return [found.get(name) if named[name] is not None else None for name in named]

    @staticmethod
    def _or_none(x: Tensor | None) -> Tensor | None:
        return None if x is None or x.shape == (0,) else x

    def _gradient_step(self, args: Sequence[Any], grads: Sequence[Tensor | None]) -> Any:
        """That of a sequence of one token."""
        named = self._named(args, self.step_names)
        axes = tuple(named[x].ndim for x in ("q", "k", "v"))
        place = dict.fromkeys(("q", "k", "v"), -2)
        for extra in self.r.extras:
            if named[extra.name] is not None and "n" in extra.dims:
                rank = extra.own_axes(named[extra.name].ndim, max(axes), tokens=False)
                place[extra.name] = -1 - rank
        whole = {x: y.unsqueeze(place[x]) if x in place else y for x, y in named.items()}
        of_o = grads[0] if grads[0] is None else grads[0].unsqueeze(-2)
        rest = self._gradient([whole.get(x) for x in self.names], (of_o, *grads[1:]))
        found = dict(zip(self.names, rest, strict=True))
        return [
            found[x] if x not in place or found[x] is None else found[x].squeeze(place[x])
            for x in named
        ]


def _like(v: Tensor, shape: Sequence[int]) -> Tensor:
    """Memory for an output, in the layout of the values where it has their shape.

    So (batch, tokens, heads, m) turned to (batch, heads, tokens, m) can be turned back for
    nothing.
    """
    return torch.empty_like(v) if v.shape == torch.Size(shape) else v.new_empty(shape)


def _first(x: Any) -> Any:
    return x[0] if isinstance(x, tuple) else x


def _integers(name: str, argument: str, x: Any, q: Any) -> Tensor:
    """Those of a list where the queries are."""
    if not isinstance(x, Tensor):
        x = torch.as_tensor(x, device=q.device if isinstance(q, Tensor) else None)
    if x.dtype.is_floating_point or x.dtype.is_complex or x.dtype is torch.bool:
        raise TypeError(f"{name}: {argument} has dtype {x.dtype}; expected integers")
    return x


def _number(name: str, argument: str, x: Any) -> float:
    if not isinstance(x, (int, float, np.integer, np.floating)):
        raise TypeError(f"{name}: {argument} is {x!r}; expected a number")
    return float(x)
