"""The section Raises: conditions, and the words in which they differ."""

from __future__ import annotations

from collections.abc import Collection
from typing import NamedTuple


class Raised(NamedTuple):
    """A condition in the section Raises, left out if the function takes none of its names."""

    error: str
    names: str  #: parameters, separated by blanks; "" applies to every function
    text: str

    def sentence(self, takes: Collection[str]) -> str:
        """The condition for the parameters that are taken; "" if it applies to none."""
        if not self.names:
            return f"If {self.text}."
        names = [f"``{name}``" for name in self.names.split() if name in takes]
        *first, last = names or [""]
        listed = f"{', '.join(first)} or {last}" if first else last
        return f"If {listed} {self.text}." if names else ""


#: The conditions of functions of NumPy arrays.
ERRORS = (
    Raised("TypeError", "", "an operand is {refused}"),
    Raised("TypeError", "eps scale", "is not a number"),
    Raised("TypeError", "normalize causal log reverse softplus", "is not a bool"),
    Raised("TypeError", "feature_map", "is neither a name nor a map"),
    Raised("TypeError", "activation", "is neither a string nor None"),
    Raised("TypeError", "key_lengths cu_seqlens", "does not hold integers"),
    Raised("TypeError", "state_indices state_at", "does not hold integers"),
    Raised("TypeError", "block", "is not an integer"),
    Raised("TypeError", "initial_state grad_state state", "is not {holder} or has the wrong dtype"),
    Raised("TypeError", "out", "is not {array} or has the wrong dtype"),
    Raised("ValueError", "", "shapes do not match"),
    Raised("ValueError", "eps scale", "is not finite"),
    Raised("ValueError", "eps norm_eps", "is negative"),
    Raised("ValueError", "feature_map", "is not the name of a map"),
    Raised("ValueError", "activation", "is unknown"),
    Raised("ValueError", "key_lengths cu_seqlens", "does not match the tokens"),
    Raised("ValueError", "state_indices", "is out of range, or has a row twice that is written"),
    Raised("ValueError", "block", "is less than 1"),
    Raised("ValueError", "state_at", "is out of range, or given with ``cu_seqlens``"),
    Raised("ValueError", "initial_state grad_state state", "has the wrong shape{or_z}"),
    Raised("ValueError", "in_place", "is True and the state is read-only or lacks leading axes"),
    Raised("ValueError", "in_place", "is True and elements of the state overlap in memory"),
    Raised("ValueError", "out", "has the wrong shape, is read-only, or overlaps itself"),
    Raised("MemoryError", "", "there is not enough memory for the result or the scratch"),
)
