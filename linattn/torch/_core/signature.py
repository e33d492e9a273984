"""What PyTorch has to know of an operator without computing: names, places, shapes and dtypes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch

from ..._call import exact
from . import conversions
from .conversions import work_dtype
from .descriptions import Description
from .library import name_of
from .tensor_states import States

#: What an `ExactState` has lost, the last argument and result of operators that carry it.
LOST = "lost"


class Signature:
    """The arguments and results of the operators of PyTorch that are made from a description.

    Arguments are the operands, options, lengths and fields of the state, in this order; a step has
    no lengths, of which ``block`` is one.  A map is two options here: its text and omega.
    """

    def __init__(self, description: Description) -> None:
        d = self.description = description
        self.name, self.operands, self.fields = d.name, d.layout.operands, tuple(d.fields)
        self.complex_too = d.layout.complex_too
        operands = [f"Tensor{'?' * x.optional} {x.name}" for x in self.operands]
        lengths = ["Tensor? key_lengths"] * d.lengths + ["Tensor? cu_seqlens"] * bool(d.fields)
        lengths += ["int? block"] * d.blocks
        self.token = [*operands, *d.options]  #: the schema of a token's arguments
        self.whole = [*self.token, *lengths]  #: and of a sequence's, without states
        self.operand_names = tuple(x.name for x in self.operands)
        self.option_names = tuple(map(name_of, d.options))
        self.length_names = tuple(map(name_of, lengths))
        self.names = (*map(name_of, self.whole), *self.fields, *(LOST,) * d.carries)
        self.step_names = *self.operand_names, *self.option_names, *self.fields
        #: Where options begin, lengths begin, and states begin.
        self.count, self.options_end, self.end = len(operands), len(self.token), len(self.whole)
        #: The place of the values: the operand whose width and dtype the output has.
        width = d.layout.output[-1:]
        self.values = next(i for i, x in enumerate(self.operands) if x.dims.endswith(width))
        self.mapped = "feature_map" in self.option_names
        self.states = States(d, self.names)

    def own_axes(self, axes: Mapping[str, int | None], step: bool) -> list[int]:
        """How many axes of each operand do not lead, from the number of axes of each."""
        tellers = [axes.get(x.name) or 0 for x in self.operands[: self.description.layout.leading]]
        longest = max(tellers, default=0)
        return [x.own_axes(axes.get(x.name) or 0, longest, tokens=not step) for x in self.operands]

    def shape(self, named: Mapping[str, Any], step: bool) -> tuple[tuple[int, ...], Any]:
        """The leading axes of the operands, broadcast, and the sizes of the dimensions."""
        given = {x: y.shape for x in self.operand_names if (y := named.get(x)) is not None}
        leads, sizes = self.split(given, step)
        return torch.broadcast_shapes(*leads), sizes

    def split(
        self, shapes: Mapping[str, Sequence[Any]], step: bool
    ) -> tuple[list[Sequence[Any]], dict[str, Any]]:
        """The leading axes of each operand that is given, and the sizes of the dimensions."""
        leads: list[Sequence[Any]] = []
        sizes: dict[str, Any] = {}
        own = self.own_axes({name: len(x) for name, x in shapes.items()}, step)
        for operand, rank in zip(self.operands, own, strict=True):
            if operand.name in shapes:
                shape = shapes[operand.name]
                first = max(len(shape) - rank, 0)
                leads.append(shape[:first])
                letters = operand.letters(tokens=not step)
                for letter, size in zip(letters, shape[first:], strict=False):
                    if sizes.get(letter, 1) == 1:
                        sizes[letter] = size
        return leads, sizes

    def ranks(self, *axes: int | None, step: bool = False) -> list[int | None]:
        """How many axes of each argument do not lead; None for those that vmap cannot map."""
        named = dict(zip(self.step_names if step else self.names, axes, strict=False))
        own: dict[str, int | None] = dict(
            zip(self.operand_names, self.own_axes(named, step), strict=True)
        )
        packed = named.get("cu_seqlens") is not None
        own |= {"key_lengths": 0}
        own |= {x: len(dims) + packed for x, dims in self.description.fields.items()}
        own[LOST] = own.get("s")
        return [own.get(name) for name in named]

    def ranks_backward(self, *axes: int | None) -> list[int | None]:
        """The same of the gradient's operator."""
        count = self.cotangents(axes)
        ranks = self.ranks(*axes[count:])
        return [len(self.description.layout.output), *ranks[self.end :], *ranks]

    def cotangents(self, args: Sequence[Any]) -> int:
        """How many arguments of a gradient's operator precede those of the forward one."""
        return 1 if len(args) == 1 + self.end else 1 + len(self.fields)

    def fake(self, *args: Any, step: bool = False) -> Any:
        """Results of the right shapes and dtypes."""
        d = self.description
        named = dict(zip(self.step_names if step else self.names, args, strict=False))
        lead, sizes = self.shape(named, step)
        like = args[self.values]
        core = d.layout.output.replace("n", "") if step else d.layout.output
        shape = (*lead, *(sizes[x] for x in core))
        if like.shape == torch.Size(shape) and not step:
            # (batch, tokens, heads, m) transposed is transposed back without a copy
            o = torch.empty_like(like)
        else:
            o = like.new_empty(shape)
        if not self.fields or self.fields[0] not in named:
            return o
        sizes |= d.sizes(named, sizes)
        if named.get("cu_seqlens") is not None:
            lead = (*lead, named["cu_seqlens"].shape[0] - 1)
        there = zip(d.fields.items(), self.states.present(args), strict=True)
        cores = {x: tuple(sizes[y] for y in dims) for (x, dims), exists in there if exists}
        if LOST in named:
            cores[LOST] = (*cores["s"][:-1], sum(exact.columns(cores)))
        dtype = work_dtype(like.dtype)
        return o, *(
            like.new_empty((*lead, *cores[x]), dtype=dtype) if x in cores else conversions.nothing()
            for x in (*self.fields, *(LOST,) * (LOST in named))
        )

    def fake_backward(self, *args: Any) -> Any:
        """The same of the gradient's operator."""
        args = args[self.cotangents(args) :]
        states = list(args[self.end :])
        if any(x is None for x in states):  # zeros, whose gradient has all leading axes
            zeros = dict(zip(self.fields, self.fake(*args)[1:], strict=False))
            if self.mapped:
                zeros["log_scale"] = None  # it is included in the gradient of z
            states = [
                zeros[name] if x is None else x for name, x in zip(self.fields, states, strict=True)
            ]
        found = [None if x is None else torch.empty_like(x) for x in args[: self.count]]
        found += [None if x is None else x.new_empty(x.shape) for x in states]
        return tuple(conversions.nothing() if x is None else x for x in found)
