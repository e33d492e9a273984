"""Docstrings made from templates, whose lines ``$name`` stand for text that several share.

A function of NumPy arrays fills its template itself (`filled`).  A bridge fills the same template
with its own words, parameters and errors (`sections`; see `linattn._bridge`).
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, NamedTuple, TypeVar

from .feature_maps import NAMES

F = TypeVar("F", bound=Callable[..., Any])


class Raised(NamedTuple):
    """A condition of the section Raises, left out where the function takes none of its names."""

    error: str
    names: str  #: parameters, separated by blanks; "" holds for every function
    text: str

    def sentence(self, takes: Collection[str]) -> str:
        """The condition on what is taken; "" where nothing of it is."""
        if not self.names:
            return f"If {self.text}."
        names = [f"``{name}``" for name in self.names.split() if name in takes]
        *first, last = names or [""]
        listed = f"{', '.join(first)} or {last}" if first else last
        return f"If {listed} {self.text}." if names else ""


class Vocabulary(NamedTuple):
    """What a docstring calls arrays."""

    given: str = "array_like"  #: the type of an operand
    made: str = "ndarray"  #: the type of a result
    array: str = "array"
    arrays: str = "arrays"
    library: str = "NumPy"
    refused: str = "complex, masked, or not numbers"


NUMPY = Vocabulary()
TITLES = ("", "Parameters", "Returns", "Yields", "Raises", "Notes", "References", "Examples")

_ERRORS = (
    Raised("TypeError", "", "an operand is {refused}"),
    Raised("TypeError", "eps scale", "is not a number"),
    Raised("TypeError", "normalize causal log reverse softplus", "is not a bool"),
    Raised("TypeError", "feature_map", "is neither a name nor a map"),
    Raised("TypeError", "activation", "is neither a string nor None"),
    Raised("TypeError", "key_lengths cu_seqlens", "is not of integers"),
    Raised("TypeError", "initial_state grad_state state", "is no {state}, or of another dtype"),
    Raised("TypeError", "out", "is no {array}, or of another dtype"),
    Raised("ValueError", "", "shapes do not match"),
    Raised("ValueError", "eps scale", "is not finite"),
    Raised("ValueError", "feature_map", "is the name of no map"),
    Raised("ValueError", "activation", "is unknown"),
    Raised("ValueError", "key_lengths cu_seqlens", "does not fit the tokens"),
    Raised("ValueError", "initial_state grad_state state", "has another shape{z}"),
    Raised("ValueError", "in_place", "is True and the state is read-only, or lacks leading axes"),
    Raised("ValueError", "in_place", "is True and the state repeats its memory"),
    Raised("ValueError", "out", "has another shape, is read-only, or repeats its memory"),
    Raised("MemoryError", "", "there is no room for the result or the scratch"),
)


def _errors(state: str, z: str) -> tuple[Raised, ...]:
    return tuple(
        x._replace(text=x.text.replace("{state}", state).replace("{z}", z)) for x in _ERRORS
    )


#: By name: conditions of the section Raises.
RAISES = {
    "raises": _errors("State", ", or a wrong ``z``"),
    "raises_of_convolutions": _errors("{array}", ""),
}

#: The parameter without which a paragraph is left out.
NEEDS = {
    "packed_memory": "cu_seqlens",
    "packed_state": "cu_seqlens",
    "final_memory": "return_state",
    "final_state": "return_state",
}

#: By name: descriptions of parameters and results, and remarks; a bridge puts in its own {words}.
PARAGRAPHS = {
    "q": """
    q : array_like, shape (..., n, d)
        Queries, float16, bfloat16, float32 or float64 (other real dtypes are cast by
        {library}'s rules).  16-bit numbers are computed in float32 and rounded once.""",
    "k": """
    k : array_like, shape (..., n, d)
        Keys.""",
    "v": """
    v : array_like, shape (..., n, m)
        Values.""",
    "all_keys": """
    k : array_like, shape (..., s, d)
        Keys.""",
    "all_values": """
    v : array_like, shape (..., s, m)
        Values.""",
    "token": """
    q, k : array_like, shape (..., d)
        The token's query and key.
    v : array_like, shape (..., m)
        Its value.""",
    "g": """
    g : array_like, shape (..., n) or (..., n, d)
        Natural logarithm of the decay of each token, or of each of its key channels: 0
        forgets nothing, -inf all; it may be positive, where the memory then grows.  The
        number of axes decides: with fewer axes than the longest of q, k and v it is (..., n);
        otherwise (..., n, d), where a last axis of length 1 serves all channels.  It is
        converted to what is computed in, float32 for 16-bit tokens, and has no say in the
        result's dtype.""",
    "bonus": """
    bonus : array_like, shape (..., d), optional
        Weight u of each key channel for a token's own key; with it queries read before their
        token's decay and write.  It is converted as ``g`` is.""",
    "token_g": """
    g : array_like, shape (...) or (..., d)
        Natural logarithm of its decay, or of that of each key channel, by its number of axes
        as in the whole sequence.""",
    "beta": """
    beta : array_like, shape (..., n) or (..., n, m)
        Write strength of each token, or of each of its value channels.  The number of
        axes decides: with fewer axes than the longest of q, k and v it is (..., n);
        otherwise (..., n, m), where a last axis of length 1 serves all channels.""",
    "token_beta": """
    beta : array_like, shape (...) or (..., m)
        Its write strength, or one of each value channel.  The number of axes decides:
        with fewer axes than the longest of q, k and v it is (...); otherwise (..., m),
        where a last axis of length 1 serves all channels.""",
    "memory": """
    state : State
        The memory so far, ``s`` (..., d, m), of the result's dtype, or float32 where that
        has 16 bits, and ``z`` None.""",
    "feature_map": """
    feature_map : {maps} or FeatureMap
        The map phi, applied to q and k, ``{default}`` by default; ``'elu'`` is
        ``elu(x) + 1``; an object of `linattn.feature_maps` is applied in {arrays} of its own.""",
    "normalizer": """
    normalize : bool, default True
        Divide by the sum of the weights.
    eps : float, default 1e-6
        Added once, to the whole denominator; unused where ``normalize`` is False.
    scale : float, default 1.0
        Multiplies phi(q), in the denominator as well.""",
    "scale": """
    scale : float, default 1.0
        Multiplies the output.""",
    "key_lengths": """
    key_lengths : array_like of int, broadcasting to the leading axes, optional
        Keys and values at and past it do not exist; every query is computed, and where
        there is no key at all the output is 0.""",
    "token_lengths": """
    key_lengths : array_like of int, broadcasting to the leading axes, optional
        Keys, values and all else that is written at and past it do not exist; every query is
        computed.""",
    "cu_seqlens": """
    cu_seqlens : array_like of int, shape (r + 1,), optional
        r sequences packed along n, sequence i from ``cu_seqlens[i]`` to
        ``cu_seqlens[i + 1]``, each with a state of its own; they may be empty.""",
    "initial_memory": """
    initial_state : State, optional
        The memory before the first token, ``s`` (..., d, m) and ``z`` None; default: zeros.""",
    "packed_memory": """
        With ``cu_seqlens`` its ``s`` is (..., r, d, m).""",
    "initial_state": """
    initial_state : State, optional
        The state before the first token, ``s`` (..., d, m) and ``z`` (..., d); default: zeros.""",
    "packed_state": """
        With ``cu_seqlens`` they are (..., r, d, m) and (..., r, d).""",
    "a": """
    a : array_like, broadcasting with x to (..., n, m)
        Factors, float16, bfloat16, float32 or float64 (other real dtypes are cast by
        {library}'s rules).  16-bit numbers are computed in float32 and rounded once.  All axes
        broadcast: (m,) is a factor a channel, (..., n, 1) one a token, a number one for all.""",
    "a_x": """
    x : array_like, broadcasting with a to (..., n, m)
        What is added, n tokens of m channels.""",
    "token_a_x": """
    a, x : array_like, broadcasting to (..., m)
        The token's factors and what is added.""",
    "log": """
    log : bool, default False
        Whether ``a`` holds natural logarithms of the factors: 0 keeps all, -inf nothing.""",
    "reverse": """
    reverse : bool, default False
        Scan from the last token (of each sequence) to the first: the initial state is before
        the last token, and the final one after the first.""",
    "initial_row": """
    initial_state : State, optional
        h before the first token, ``s`` (..., m) and ``z`` None; default: zeros.  With
        ``cu_seqlens`` one a sequence: there is an axis of sequences before m.""",
    "row": """
    state : State
        h before the token, ``s`` (..., m), of the result's dtype, or float32 where that has
        16 bits, and ``z`` None.""",
    "selective": """
    x : array_like, shape (..., n, m)
        Inputs, n tokens of m channels, float16, bfloat16, float32 or float64 (other real dtypes
        are cast by {library}'s rules).  16-bit numbers are computed in float32 and rounded once.
    dt : array_like, shape (..., n, m)
        Time steps.  They may be negative; the state then grows where A is negative.
    A : array_like, shape (..., m, r)
        Rates of the r states of each channel, usually negative; positive ones let a state grow.
        A is converted to what is computed in, float32 for 16-bit tokens, and has no say in the
        result's dtype; neither have D and dt_bias.
    B, C : array_like, shape (..., n, r)
        What is written to the states, and what is read of them.""",
    "token_selective": """
    x, dt : array_like, shape (..., m)
        The token's inputs and time steps.
    A : array_like, shape (..., m, r)
        Rates of the r states of each channel.
    B, C : array_like, shape (..., r)
        What is written to the states, and what is read of them.""",
    "D": """
    D : array_like, shape (..., m), optional
        Weight of x in the output.""",
    "z": """
    z : array_like, shape (..., n, m), optional
        Gate: its silu multiplies the output.""",
    "token_z": """
    z : array_like, shape (..., m), optional
        Gate: its silu multiplies the output.""",
    "dt_bias": """
    dt_bias : array_like, shape (..., m), optional
        Added to dt, before the softplus.
    softplus : bool, default False
        Whether the softplus of dt and its bias is the time step.""",
    "initial_channels": """
    initial_state : State, optional
        The state before the first token, ``s`` (..., m, r) and ``z`` None; default: zeros.  With
        ``cu_seqlens`` one a sequence: there is an axis of sequences before m.""",
    "channels": """
    state : State
        The state so far, ``s`` (..., m, r), of the result's dtype, or float32 where that has
        16 bits, and ``z`` None.""",
    "return_state": """
    return_state : bool, default False
        Return the state after the last token as well.""",
    "grad_out": """
    grad_out : array_like, shape (..., n, m)
        The gradient of a scalar with respect to the output; it may be an expanded
        (zero-stride) view.""",
    "grad_state": """
    grad_state : State, optional
        The gradient with respect to the final state.""",
    "in_place": """
    in_place : bool, default False
        Write the new state into the {arrays} of ``state``, which must then be writeable
        and have all the leading axes, and return them.""",
    "out": """
    out : ndarray, shape (..., n, m), optional
        Where to put the result; of the result's dtype.  It may overlap an operand.""",
    "wkv_k": """
    k : array_like, shape (..., n, m)
        Keys, float16, bfloat16, float32 or float64 (other real dtypes are cast by {library}'s
        rules): logarithms of weights; -inf writes nothing.  16-bit numbers are computed in
        float32 and rounded once.""",
    "wkv_v": """
    v : array_like, shape (..., n, m)
        Values.""",
    "wkv_w": """
    w : array_like, shape (..., m)
        Decay of each channel: a token multiplies its memory by e^-w.  It is converted to what is
        computed in, float32 for 16-bit tokens, and has no say in the result's dtype.""",
    "wkv_u": """
    u : array_like, shape (..., m)
        Added to a token's own key as it is read; converted as ``w`` is.""",
    "wkv_initial_state": """
    initial_state : State, optional
        The state before the first token: ``s`` (num) and ``z`` (den), both times e^-log_scale,
        and ``log_scale``, each (..., m), or (..., r, m) with ``cu_seqlens``; default: nothing
        seen, 0, 0 and -inf.""",
    "mlstm_gates": """
    i, f : array_like, shape (..., n)
        Input and forget gates before their functions, exp and sigma.  They are converted to what
        is computed in, float32 for 16-bit tokens, and have no say in the result's dtype.""",
    "mlstm_options": """
    scale : float, optional
        Multiplies q; 1 / sqrt(d) by default.
    normalize : bool, default True
        Divide by the larger of ``|scale z.q|`` and 1.
    eps : float, default 0.0
        Added to the denominator times e^-m, as the published code does, which has 1e-6; unused
        where ``normalize`` is False.""",
    "mlstm_initial_state": """
    initial_state : State, optional
        The memory before the first token times e^-log_scale: ``s`` (..., d, m) and ``z``
        (..., d), or None without the normaliser, and ``log_scale`` (...), one number a head;
        with ``cu_seqlens`` (..., r, d, m), (..., r, d) and (..., r); default: zeros.""",
    "softmax_q": """
    q : array_like, shape (..., n, d)
        Queries, float32 or float64; 16-bit numbers are computed in float32, other real
        dtypes cast by {library}'s rules.""",
    "softmax_scale": """
    scale : float, optional
        1 / sqrt(d) by default.""",
    "final_state": """
    state : State
        Only with ``return_state``.  A sequence cut anywhere continues from it.""",
    "final_memory": """
    state : State
        Only with ``return_state``; its ``z`` is None.  A sequence cut anywhere continues from
        it.""",
    "rescaling": """
    `linattn.feature_maps.PositiveRandomFeatures` rescale as they go, which avoids that.""",
    "gradients": """
    dq, dk, dv : ndarray
        Gradients, in the shapes of q, k and v; those of a broadcast operand are summed
        over its repeats.""",
    "gradient_of_state": """
    state : State
        The gradient of the initial state, in its shape; only where ``initial_state`` or
        ``grad_state`` is given.""",
}

_MAPS = f"{{{', '.join(map(repr, NAMES))}}}"
#: The templates of functions, by module and name.
_TEMPLATES: dict[tuple[str, str], str] = {}


def filled(f: F) -> F:
    """f, with the docstring that its template makes."""
    if f.__doc__ is not None:  # python -OO
        _TEMPLATES[f.__module__, f.__qualname__] = inspect.cleandoc(f.__doc__)
        f.__doc__ = joined(sections(f, inspect.signature(f).parameters))
    return f


def sections(
    f: Callable[..., Any],
    takes: Collection[str],
    words: Vocabulary = NUMPY,
    *,
    without: Collection[str] = (),
    raises: Sequence[Raised] = (),
    also_raises: Sequence[Raised] = (),
) -> dict[str, str]:
    """The docstring of f by titles, "" for what stands before the first.

    It is that of a function with the parameters ``takes``.  Paragraphs named in ``without`` are
    left out.  ``raises`` stands in place of f's errors, ``also_raises`` beside them.
    """
    template = _TEMPLATES.get((f.__module__, f.__qualname__)) or inspect.cleandoc(f.__doc__ or "")
    default = getattr(inspect.signature(f).parameters.get("feature_map"), "default", None)
    places = words._asdict() | {"maps": _MAPS, "default": repr(default)}
    left_out = {*without, *(name for name, needed in NEEDS.items() if needed not in takes)}
    made = {}
    for title, text in split(template).items():
        rows = RAISES.get(text.strip().removeprefix("$"), ())
        if title == "Raises" and (rows or raises):
            text = _listed((*(raises or rows), *also_raises), takes)
        else:
            text = _expanded(text, left_out)
        if title in ("Parameters", "Returns"):
            text = text.replace("array_like", words.given).replace("ndarray", words.made)
        if title == "Parameters":
            text = "\n".join(x for x in _entries(text) if not _names(x).isdisjoint(takes))
        for name, word in places.items():
            text = text.replace(f"{{{name}}}", word)
        made[title] = text
    return made


def joined(texts: Mapping[str, str]) -> str:
    """A docstring from its sections, in numpydoc's order."""
    return "\n\n".join(
        f"{title}\n{'-' * len(title)}\n{text.strip()}" if title else text.strip()
        for title in TITLES
        if (text := texts.get(title, "").strip())
    )


def split(text: str) -> dict[str, str]:
    """The sections of a docstring by titles, "" for what stands before the first."""
    lines = text.split("\n")
    titles = [i for i, line in enumerate(lines[1:]) if line and line == "-" * len(lines[i])]
    found = {"": "\n".join(lines[: titles[0] if titles else None])}
    for first, end in zip(titles, [*titles[1:], len(lines)], strict=True):
        found[lines[first]] = "\n".join(lines[first + 2 : end])
    return found


def _expanded(text: str, left_out: Collection[str]) -> str:
    """The paragraphs in place of their names."""
    lines = []
    for line in text.split("\n"):
        if not line.startswith("$"):
            lines.append(line)
        elif line[1:] not in left_out:
            lines += (x[4:] for x in PARAGRAPHS[line[1:]].split("\n")[1:])
    return "\n".join(lines)


def _entries(text: str) -> list[str]:
    """The section Parameters, an entry each."""
    found: list[str] = []
    for line in text.strip().split("\n"):
        if line.startswith(" "):
            found[-1] += f"\n{line}"
        else:
            found.append(line)
    return found


def _names(entry: str) -> set[str]:
    """The parameters that an entry describes."""
    return {x.strip().lstrip("*") for x in entry.partition(" : ")[0].split(",")}


def _listed(rows: Sequence[Raised], takes: Collection[str]) -> str:
    """Errors, each with its conditions."""
    found: dict[str, list[str]] = {}
    for row in rows:
        if sentence := row.sentence(takes):
            found.setdefault(row.error, []).append(f"    {sentence}")
    return "\n".join("\n".join((error, *lines)) for error, lines in found.items())
