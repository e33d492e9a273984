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
    "v": ("Tensor, [B, T, HV, V], HV a multiple of H", "Values."),
    "g": (_GATES, "Natural logarithm of the decays."),
    "gk": (_TOKENS, "Natural logarithm of the decays of key channels."),
    "gv": ("Tensor, [B, T, HV, V], optional", "Natural logarithm of the decays of value channels."),
    "g_gamma": ("Tensor, [HV]", "The log decay of each head, in place of g."),
    "w": (_TOKENS, "Natural logarithm of the decays of key channels."),
    "u": ("Tensor, [H, K]", "The bonus of each token's own key."),
    "a": (_TOKENS, "The key that reads the state before it decays."),
    "b": (_TOKENS, "The key under which that is written back."),
    "eps": ("float", "Added to the denominator."),
    "use_norm": ("bool", "Divide by the sum of the weights."),
    "use_normalize": ("bool", "Divide by the sum of the weights."),
    "use_scale": ("bool", "Divide scores by sqrt(K)."),
    "return_both": ("bool", "Return undivided outputs, and the sums of the weights."),
    "lamb": ("Tensor, [H, K]", "Added to the diagonal of h_kk; positive."),
    "h_kk_init": ("Tensor, [N, H, K, K], optional", "Sums of keys times keys; symmetric."),
    "h_kv_init": ("Tensor, [N, H, K, V], optional", "Sums of keys times values."),
    "prev_h_kk": ("Tensor, [B, H, K, K]", "Sums of keys times keys; symmetric."),
    "prev_h_kv": ("Tensor, [B, H, K, V]", "Sums of keys times values."),
    "max_CG_iteration": ("int", "The most iterations; fewer where they have converged."),
    "level_scales": ("Tensor, [B, T, HV, L]", "The factor of each level; L > log2(T - 1) + 1."),
    "g_atk": ("Tensor, [B, T, H]", "Natural logarithm of the decays of the preconditioner."),
    "beta_atk": ("Tensor, [B, T, H]", "What squared keys count in it."),
    "log_atk_scale": ("Tensor, [H], or float, optional", "Its center, a logarithm; -0.2 if None."),
    "initial_A_state": ("Tensor, [N, H, K], optional", "The preconditioner's first sum."),
    "transpose_state_layout": ("bool", "States are [N, HV, V, K]."),
    "use_q_l2norm": ("bool", "Divide queries by their norms first."),
    "use_k_l2norm": ("bool", "Divide keys by their norms first."),
    "kk": (_TOKENS, "The removal key."),
    "beta": (_GATES, "Write strengths; 1 if None where it is optional."),
    "s": ("Tensor, [B, T, H, M]", "Weights of the M slots that each token writes to."),
    "p": (_TOKENS, "The key that reads from the state; k if None."),
    "num_householder": ("int", "n, the number of writes per token."),
    "layer_idx": ("int", "The layer, from 0."),
    "num_layers": ("int", "The number of layers."),
    "scale": ("float, optional", "Multiplies the output; None is 1 / sqrt(K)."),
    "initial_state": ("Tensor, [N, HV, K, V], optional", "The state before the first token."),
    "output_final_state": ("bool", "Return the state after the last token."),
    "state": ("Tensor, [B, 3, 1, D]", "Sums s and z, times e^-l, and l; l is -inf at first."),
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
    "wkv": """o : Tensor, [B, T, D]
state : Tensor, [B, 3, 1, D]
    That after the last token.""",
    "output": "o : Tensor, [B, T, H, V]",
    "rebased": """o : Tensor, [B, T, H, V]
    With ``return_both`` a pair of [B, H, T, V] and [B, H, T].""",
    "mesa": """o : Tensor, [B, T, H, V]
h_kk, h_kv : Tensor, [N, H, K, K] and [N, H, K, V], or None
    float32 or float64; None without ``output_final_state``.""",
    "mesa_step": """o : Tensor, [B, H, V]
h_kk, h_kv : Tensor, [B, H, K, K] and [B, H, K, V]""",
    "log_linear": """o : Tensor, [B, T, HV, V]
final_state : LogLinearAttentionState or None
    None without ``output_final_state``.""",
    "preconditioned": _STATES
    + """
final_A_state : Tensor, [N, H, K], or None
    The decaying sum of squared keys.""",
    "parallel": """o : Tensor, [B, T, HV, V]
attentions : None
    fla's attention scores, which are never computed.""",
    "gsa": """o : Tensor, [B, T, HQ, V]
final_state : pair of tensors, [N, H, K, M] and [N, H, M, V], or of None
    float32 or float64; None without ``output_final_state``.""",
    "lightnet": """o : Tensor, [B, T, H, V]
final_state : pair of tensors, [N, H, K, V] and [N, 1, H, K]
    The state, None without ``output_final_state``, and the logarithms of the sums of the keys'
    exponentials; float32 or float64.""",
    "linear_scan": """o : Tensor, [B, T, D]
final_state : Tensor, [N, D], or None
    float32 or float64; None without ``output_final_state``.""",
    "causal_conv1d": """y : Tensor, [B, T, D]
final_state : Tensor, [N, D, W], or None
    The last W inputs; None without ``output_final_state``.""",
    "causal_conv1d_step": """y : Tensor
    Of the shape of x.
cache : Tensor, [N, D, W]""",
}
#: Values of required parameters in examples, by their types; x is [1, 3, 2, 4].
_VALUES = {
    _GATES: "x[..., 0]",
    "Tensor, [B, T, H]": "x[..., 0]",
    "Tensor, [H, K]": "x[0, 0]",
    "int": "1",
}


def _row(name: str, replaced: str | tuple[str, str] | None) -> tuple[str, str]:
    """The type and the description of a parameter."""
    if isinstance(replaced, tuple):
        return replaced
    kind, text = PARAMETERS[name]
    return replaced or kind, text


#: By what is returned, the left side of an example.
_LEFT = {"output": "o", "rebased": "o", "preconditioned": "o, _, _"}


def documented(
    operator: str, *, returns: str | None = None, **types: str | tuple[str, str]
) -> Callable[[F], F]:
    """Append the sections that all functions share to a docstring.

    ``operator`` is the function of `linattn.torch` that it calls; ``returns`` names what it
    returns in `_RETURNS`, if not by the operator; ``types``, some with descriptions, replace
    those of `PARAMETERS`.
    """

    def decorate(f: F) -> F:
        if f.__doc__ is None:  # python -OO
            return f
        parameters = inspect.signature(f).parameters
        table = {name: _row(name, types.get(name)) for name in parameters}
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
            state = ", output_final_state=True" * ("output_final_state" in parameters)
            results = _LEFT.get(returns or "", "o, _")
            example = _EXAMPLE.format(results, f"{f.__name__}({values}{state})")
        f.__doc__ = (
            f"{own.strip()}\n\n`linattn.torch.{operator}` in the layouts of `linattn.torch.fla`.\n"
            f"\nParameters\n----------\n{rows}"
            f"\nReturns\n-------\n{_RETURNS.get(returns or operator, _STATES)}\n"
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
>>> {} = fla.{}
>>> o.shape
torch.Size([1, 3, 2, 4])"""
