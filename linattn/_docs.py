"""Paragraphs that several docstrings share, and what puts them there."""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Any, TypeVar

F = TypeVar("F", bound=Callable[..., Any])

#: By name; a default stands for the function's own.
PARAGRAPHS = {
    "q": """
    q : array_like, shape (..., n, d)
        Queries, float16, bfloat16, float32 or float64 (other real dtypes are cast by
        NumPy's rules).  16-bit numbers are computed in float32 and rounded once.""",
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
    "raises": """
    TypeError
        If an operand is complex, masked, or not numbers.
        If ``eps`` or ``scale`` is not a number.
        If ``normalize`` is not a bool.
        If ``feature_map`` is neither a name nor a map.
        If ``key_lengths`` or ``cu_seqlens`` is not of integers.
        If ``initial_state``, ``grad_state`` or ``state`` is no State, or of another dtype.
        If ``out`` is no array, or of another dtype.
    ValueError
        If shapes do not match.
        If ``eps`` or ``scale`` is not finite.
        If ``feature_map`` is the name of no map.
        If ``key_lengths`` or ``cu_seqlens`` does not fit the tokens.
        If ``initial_state``, ``grad_state`` or ``state`` has another shape, or a wrong ``z``.
        If ``in_place`` is asked for and the state is read-only, or lacks leading axes.
        If ``in_place`` is asked for and the state repeats its memory.
        If ``out`` has another shape, is read-only, or repeats its memory.
    MemoryError
        If there is no room for the result or the scratch.""",
    "feature_map": """
    feature_map : {'identity', 'relu', 'elu', 'softplus', 'exp', 'l2norm', 'dpfp'} or FeatureMap
        The map phi, applied to q and k, ``{default}`` by default; ``'elu'`` is
        ``elu(x) + 1``; an object of `linattn.feature_maps` is applied in arrays of its own.""",
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
        The memory before the first token, ``s`` (..., d, m) and ``z`` None; zeros by default.
        With ``cu_seqlens`` its ``s`` is (..., r, d, m).""",
    "initial_state": """
    initial_state : State, optional
        The state before the first token, ``s`` (..., d, m) and ``z`` (..., d); zeros by default.
        With ``cu_seqlens`` they are (..., r, d, m) and (..., r, d).""",
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
        Write the new state into the arrays of ``state``, which must then be writeable
        and have all the leading axes, and return them.""",
    "out": """
    out : ndarray, shape (..., n, m), optional
        Where to put the result; of the result's dtype.  It may overlap an operand.""",
    "softmax_q": """
    q : array_like, shape (..., n, d)
        Queries, float32 or float64; 16-bit numbers are computed in float32, other real
        dtypes cast by NumPy's rules.""",
    "softmax_scale": """
    scale : float, optional
        1 / sqrt(d) by default.""",
    "gradients": """
    dq, dk, dv : ndarray
        Gradients, in the shapes of q, k and v; those of a broadcast operand are summed
        over its repeats.""",
    "gradient_of_state": """
    state : State
        The gradient of the initial state, in its shape; only where ``initial_state`` or
        ``grad_state`` is given.""",
    "no_room": """
    MemoryError
        If there is no room for the result or the scratch.""",
}


def filled(f: F) -> F:
    """f, its docstring's lines ``$name`` replaced by the paragraphs of that name."""
    if f.__doc__ is None:  # python -OO
        return f
    text, margin = f.__doc__, "    "
    if f"\n{margin}$" not in text:  # Python 3.13 takes it away
        text = text.replace("\n", f"\n{margin}")
    default = repr((f.__kwdefaults__ or {}).get("feature_map"))
    lines = [
        PARAGRAPHS[line[5:]][1:].replace("{default}", default) if line.startswith("    $") else line
        for line in text.split("\n")
    ]
    takes = f.__code__.co_varnames[: f.__code__.co_argcount + f.__code__.co_kwonlyargcount]
    f.__doc__ = restricted("\n".join(lines), takes)
    return f


def restricted(text: str, takes: Collection[str]) -> str:
    """Without what lines that begin with "If" or "With" say of parameters that are not taken."""
    lines = []
    for line in text.split("\n"):
        if line.lstrip().startswith(("If ``", "With ``")):
            before, *parts = line.split("``")
            count = 1
            while parts[count] in (", ", " or "):
                count += 2
            names = [f"``{x}``" for x in parts[:count:2] if x in takes]
            if not names:
                continue
            listed = " or ".join(filter(None, (", ".join(names[:-1]), names[-1])))
            line = f"{before}{listed}{'``'.join(parts[count:])}"
        lines.append(line)
    return "\n".join(lines)
