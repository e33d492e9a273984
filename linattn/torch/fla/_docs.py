"""Docstrings of fla's functions, from their signatures."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from ._layout import ABSENT, HINTS

F = TypeVar("F", bound=Callable[..., Any])

_HINT = "Says how a GPU computes, and changes nothing."
_ABSENT = "Refused: linattn has no such thing."
_REFUSAL = """NotImplementedError
    If a keyword asks for what linattn has not: see `linattn.torch.fla`.
"""
_KEYS = "[B, T, H, K]"
_GATES = "[B, T, HV], of each token"
#: By name: the type, what it is, and its value in examples, where x is (1, 3, 2, 4).
_PARAMETERS = {
    "q": (f"Tensor, {_KEYS}", "Queries.", "x"),
    "r": (f"Tensor, {_KEYS}", "Queries, which RWKV calls receptance.", "x"),
    "k": (f"Tensor, {_KEYS}", "Keys.", "x"),
    "v": ("Tensor, [B, T, HV, V]", "Values; HV a multiple of H.", "x"),
    "g": (f"Tensor, {_GATES}", "Natural logarithm of the decays.", "x[..., 0]"),
    "gk": (f"Tensor, {_KEYS}", "Natural logarithm of the decays of key channels.", "x"),
    "g_gamma": ("Tensor, [H]", "The logarithm of one decay a head, in place of g.", ""),
    "w": (f"Tensor, {_KEYS}", "Natural logarithm of the decays of key channels.", "x"),
    "u": ("Tensor, [H, K]", "The bonus of a token's own key.", "x[0, 0]"),
    "a": (f"Tensor, {_KEYS}", "What each token reads with before it writes.", "x"),
    "b": (f"Tensor, {_KEYS}", "Where it writes what it read.", "x"),
    "kk": (f"Tensor, {_KEYS}", "The removal key.", "x"),
    "beta": (f"Tensor, {_GATES}", "Write strengths; 1 where it is None.", "x[..., 0]"),
    "layer_idx": ("int", "The layer, from 0.", "0"),
    "num_layers": ("int", "How many layers there are.", "2"),
    "scale": ("float, optional", "Multiplies the output; None is 1 / sqrt(K).", ""),
    "initial_state": ("Tensor, [N, HV, K, V], optional", "Before the first token.", ""),
    "output_final_state": ("bool", "Return the state after the last token.", ""),
    "reverse": ("bool", "From the last token to the first.", ""),
    "normalize": ("bool", "Divide by the sum of the weights.", ""),
    "state_v_first": ("bool", "States are [N, HV, V, K].", ""),
    "cu_seqlens": ("Tensor of int, [N + 1], optional", "Bounds of packed sequences; B is 1.", ""),
    "use_qk_l2norm_in_kernel": ("bool", "Queries and keys are first divided by their norms.", ""),
    "use_gate_in_kernel": ("bool", "The decays are computed from g, A_log and dt_bias.", ""),
    "use_beta_sigmoid_in_kernel": ("bool", "The strengths are sigmoid(beta).", ""),
    "allow_neg_eigval": ("bool", "The strengths are 2 sigmoid(beta).", ""),
    "A_log": ("Tensor, [HV], optional", "Logarithm of the rate, where gates are computed.", ""),
    "dt_bias": ("Tensor, optional", "Added to g, where gates are computed.", ""),
    "lower_bound": ("float, optional", "Of decays that are computed; otherwise a hint.", ""),
    "safe_gate": ("bool", "Asks for a lower bound where gates are computed.", ""),
    "x": ("Tensor, [B, T, D]", "Tokens; of one token [N, D], [N, 1, D] or [1, N, D].", "x[0]"),
    "cache": ("Tensor, [N, D, W]", "The last W inputs, which is updated.", "x[0, :2].mT"),
    "weight": ("Tensor, [D, W]", "The filter of each channel; it has to be given.", ""),
    "bias": ("Tensor, [D], optional", "Added to each channel.", ""),
    "residual": ("Tensor, optional", "Added to the result.", ""),
    "activation": ("{'silu', 'swish', None}", "Applied to the sum.", ""),
    "backend": ("str, optional", _HINT, ""),
    "kwargs": ("optional", "Further keywords of fla's: see `linattn.torch.fla`.", ""),
}


def documented(operator: str, **shapes: str) -> Callable[[F], F]:
    """Gives f, whose docstring says what is its own, the sections that all have in common.

    The operator is that of `linattn.torch` which f calls; shapes are those of parameters that
    are not what they are elsewhere.
    """

    def decorate(f: F) -> F:
        if f.__doc__ is None:  # python -OO
            return f
        takes = inspect.signature(f).parameters
        unknown = ", or a keyword is unknown" if "kwargs" in takes else ""
        refusal = _REFUSAL if {*ABSENT, "kwargs"} & takes.keys() else ""
        rows = "".join(_row(x, shapes.get(x)) for x in takes)
        own, _, examples = inspect.cleandoc(f.__doc__).partition("Examples\n--------\n")
        f.__doc__ = (
            f"{own.strip()}\n\n`linattn.torch.{operator}` in the layouts of `linattn.torch.fla`.\n"
            f"\nParameters\n----------\n{rows}\nReturns\n-------\n{_RETURNS[operator]}\n\n"
            f"Raises\n------\nTypeError\n    If an operand is no tensor{unknown}.\nValueError\n"
            "    If shapes do not match, or options contradict each other.\n"
            f"{refusal}\nExamples\n--------\n{examples or _example(f.__name__, takes, shapes)}"
        )
        return f

    return decorate


_STATES = """o : Tensor, [B, T, HV, V]
final_state : Tensor, [N, HV, K, V], or None
    In float32 at least; only with ``output_final_state``."""
_RETURNS = {
    **dict.fromkeys(("gated", "delta", "gated_delta", "dplr"), _STATES),
    "causal": _STATES + "  With ``normalize`` a pair of it and [N, 1, H, K].",
    "causal_conv1d": """y : Tensor, [B, T, D]
final_state : Tensor, [N, D, W], or None
    The last W inputs; only with ``output_final_state``.""",
    "causal_conv1d_step": """y : Tensor
    In the shape of x.
cache : Tensor, [N, D, W]""",
}


def _row(name: str, shape: str | None) -> str:
    other = ("optional", _HINT if name in HINTS else _ABSENT, "")
    kind, text, _ = _PARAMETERS.get(name, other)
    stars = "**" if name == "kwargs" else ""
    return f"{stars}{name} : {shape or kind}\n    {text}\n"


def _example(name: str, takes: Mapping[str, inspect.Parameter], shapes: Mapping[str, str]) -> str:
    required = [x for x, p in takes.items() if p.default is p.empty and p.kind is not p.VAR_KEYWORD]
    values = ", ".join(  # what has another shape here has that of keys
        "x" if shapes.get(x, "").endswith("K]") else _PARAMETERS[x][2] for x in required
    )
    return (
        ">>> import torch\n>>> from linattn.torch import fla\n>>> x = torch.ones(1, 3, 2, 4)\n"
        f">>> o, state = fla.{name}({values}, output_final_state=True)\n"
        ">>> o.shape\ntorch.Size([1, 3, 2, 4])"
    )
