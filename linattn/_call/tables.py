"""The gufuncs of a recurrence, by variant, map and normaliser."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, TypeAlias

import numpy as np

from .._core import checks
from .._core.gufuncs import ufuncs
from .._linattn import maps
from ..feature_maps._names import unknown_map

Key: TypeAlias = tuple[str, str, bool]

MAPS = tuple(maps)  #: those that kernels apply themselves


class Table(dict[Key, np.ufunc]):
    """The gufuncs of one form of an operator, keyed by (variant, map, normalize).

    Parameters
    ----------
    form : str
        Their name, with a place for the variant.
    suffixes : iterable of str
        Those that variants consist of, in their order.
    mapped, normalizer : bool
        Whether the operator has maps, and a normaliser.
    blocks : str, default ""
        The suffix of variants with blocks, which follows the others.
    apart : iterable of str
        Those that variants with blocks lack.
    """

    def __init__(
        self, form: str, suffixes: Iterable[str], *, mapped: bool, normalizer: bool,
        blocks: str = "", apart: Iterable[str] = (),
    ) -> None:  # fmt: skip
        variants = [""]
        for suffix in suffixes:
            variants += [variant + suffix for variant in variants]
        if blocks:
            variants += [x + blocks for x in variants if not any(y in x for y in apart)]
        choices = ((True, ""), (False, "_sum")) if normalizer else ((False, ""),)
        ends = {name: f"_{name}" for name in MAPS} if mapped else {"identity": ""}
        self.names = {
            (variant, feature_map, normalize): f"{form.format(variant)}{named}{end}"
            for variant in variants
            for feature_map, named in ends.items()
            for normalize, end in choices
        }

    def __missing__(self, key: Key) -> np.ufunc:
        gufunc = self[key] = ufuncs[self.names[key]]
        return gufunc

    def key(self, function: str, variant: str, feature_map: Any, normalize: Any) -> Key:
        """The key of a call, checked."""
        try:
            known = (variant, feature_map, False) in self.names
        except TypeError:
            known = False
        if not known:
            raise unknown_map(function, feature_map)
        return variant, feature_map, checks.flag(function, "normalize", normalize)
