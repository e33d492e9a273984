"""The docstrings of fla's functions, made from their signatures."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any, TypeVar

from ._keywords import ABSENT, HINTS

F = TypeVar("F", bound=Callable[..., Any])

_TOKENS, _GATES = "Tensor, [B, T, H, K]", "Tensor, [B, T, HV]"
#: By parameter, its type and description.
PARAMETERS = {
    "q": (_TOKENS, "Queries."),
    "r": (_TOKENS, "Queries, called receptance in RWKV."),
    "k": (_TOKENS, "Keys."),
    "v": ("Tensor, [B, T, HV, V]", "Values; HV is a multiple of H."),
    "g": (_GATES, "Natural logarithm of the decays."),
    "gk": (_TOKENS, "Natural logarithm of the decays of key channels."),
    "g_gamma": ("Tensor, [HV]", "The log decay of each head, in place of g."),
    "w": (_TOKENS, "Natural logarithm of the decays of key channels."),
    "u": ("Tensor, [H, K]", "The bonus of each token's own key."),
    "a": (_TOKENS, "The key that reads the state before it decays."),
    "b": (_TOKENS, "The key under which that is written back."),
    "kk": (_TOKENS, "The removal key."),
    "beta": (_GATES, "Write strengths; 1 if None where it is optional."),
    "p": (_TOKENS, "The key that reads from the state; k if None."),
    "num_householder": ("int", "n, the number of writes per token."),
    "layer_idx": ("int", "The layer, from 0."),
    "num_layers": ("int", "The number of layers."),
    "scale": ("float, optional", "Multiplies the output; None is 1 / sqrt(K)."),
    "initial_state": ("Tensor, [N, HV, K, V], optional", "The state before the first token."),
    "output_final_state": ("bool", "Return the state after the last token."),
    "reverse": ("bool", "Run from the last token to the first."),
    "normalize": ("bool", "Divide by the sum of the weights."),
    "state_v_first": ("bool", "States are [N, HV, V, K]."),
    "cu_seqlens": ("Tensor of int, [N + 1], optional", "Bounds of packed sequences; B is 1."),
    "use_qk_l2norm_in_kernel": ("bool", "Divide queries and keys by their norms first."),
    "use_gate_in_kernel": ("bool", "Compute the decays from g, A_log and dt_bias."),
    "use_beta_sigmoid_in_kernel": ("bool", "The write strengths are sigmoid(beta)."),
    "allow_neg_eigval": ("bool", "The write strengths are 2 sigmoid(beta)."),
    "A_log": ("Tensor, [HV], optional", "Logarithm of the rate, with ``use_gate_in_kernel``."),
    "dt_bias": ("Tensor, optional", "Added to g with ``use_gate_in_kernel``."),
    "lower_bound": ("float, optional", "Of computed decays; given decays are not bounded."),
    "safe_gate": ("bool", "Requires a lower bound where decays are computed."),
    "x": ("Tensor, [B, T, D]", "Tokens."),
    "cache": ("Tensor, [N, D, W]", "The last W inputs; updated in place."),
    "weight": ("Tensor, [D, W]", "The filter of each channel; required."),
    "bias": ("Tensor, [D], optional", "Added to each channel."),
    "residual": ("Tensor, optional", "Added to the result."),
    "activation": ("{'silu', 'swish', None}", "Applied to the sum."),
    "kwargs": ("optional", "More of fla's keywords; see `linattn.torch.fla`."),
    **dict.fromkeys(("backend", *HINTS), ("optional", "Tunes GPU kernels; ignored here.")),
    **dict.fromkeys(ABSENT, ("optional", "Not supported.")),
}
_STATES = """o : Tensor, [B, T, HV, V]
final_state : Tensor, [N, HV, K, V], or None
    float32 or float64; None without ``output_final_state``."""
_RETURNS = {
    "causal": _STATES + "  With ``normalize`` a pair of it and [N, 1, H, K].",
    "causal_conv1d": """y : Tensor, [B, T, D]
final_state : Tensor, [N, D, W], or None
    The last W inputs; None without ``output_final_state``.""",
    "causal_conv1d_step": """y : Tensor
    Of the shape of x.
cache : Tensor, [N, D, W]""",
}
#: Values of required parameters in examples, by their types; x is [1, 3, 2, 4].
_VALUES = {_GATES: "x[..., 0]", "Tensor, [H, K]": "x[0, 0]", "int": "1"}


def documented(operator: str, **types: str) -> Callable[[F], F]:
    """Append the sections that all functions share to a docstring.

    ``operator`` is the function of `linattn.torch` that it calls; ``types`` replace those of
    `PARAMETERS`.
    """

    def decorate(f: F) -> F:
        if f.__doc__ is None:  # python -OO
            return f
        parameters = inspect.signature(f).parameters
        table = {name: (types.get(name, PARAMETERS[name][0]), PARAMETERS[name][1])
                 for name in parameters}  # fmt: skip
        rows = "".join(
            f"{'**' * (name == 'kwargs')}{name} : {kind}\n    {text}\n"
            for name, (kind, text) in table.items()
        )
        unknown = ", or a keyword is unknown" if "kwargs" in parameters else ""
        refusal = "NotImplementedError\n    If a keyword is not supported.\n"
        own, _, example = inspect.cleandoc(f.__doc__).partition("Examples\n--------\n")
        if not example:
            values = ", ".join(
                _VALUES.get(kind, "x") for name, (kind, _) in table.items()
                if parameters[name].default is inspect.Parameter.empty and name != "kwargs"
            )  # fmt: skip
            example = _EXAMPLE.format(f"{f.__name__}({values}, output_final_state=True)")
        f.__doc__ = (
            f"{own.strip()}\n\n`linattn.torch.{operator}` in the layouts of `linattn.torch.fla`.\n"
            f"\nParameters\n----------\n{rows}"
            f"\nReturns\n-------\n{_RETURNS.get(operator, _STATES)}\n"
            f"\nRaises\n------\nTypeError\n    If an operand is not a tensor{unknown}.\n"
            "ValueError\n    If shapes do not match, or options contradict each other.\n"
            f"{refusal if {*ABSENT, 'kwargs'} & parameters.keys() else ''}"
            f"\nExamples\n--------\n{example}"
        )
        return f

    return decorate


_EXAMPLE = """>>> import torch
>>> from linattn.torch import fla
>>> x = torch.ones(1, 3, 2, 4)
>>> o, state = fla.{}
>>> o.shape
torch.Size([1, 3, 2, 4])"""
