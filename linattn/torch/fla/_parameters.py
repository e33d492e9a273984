"""The parameters of fla's functions, and signatures that are made from their names.

A signature is a text, ``"q k v g=None scale cu_seqlens * A_log **kwargs"``.  The annotation and
the default of a parameter follow from its type, which docstrings have too.
"""

from __future__ import annotations

import ast
import inspect
import re
from collections.abc import Iterator, Mapping
from typing import Any

from torch import Tensor

from ._keywords import ABSENT, HINTS
from ._states import LogLinearAttentionState as LogLinearAttentionState  # an annotation names it

Result = tuple[Tensor, Any]
ThreeResults = tuple[Tensor, Tensor | None, Tensor | None]
Pair = tuple[Tensor | None, Tensor | None]
Rows = dict[str, tuple[str, str]]
Types = Mapping[str, str | tuple[str, str]]  #: types, or with a description, of some parameters
USUAL: Types = {}  #: those of the table

TOKENS, GATES = "Tensor, [B, T, H, K]", "Tensor, [B, T, HV]"
#: By parameter, its type and description.
PARAMETERS: Rows = {
    "q": (TOKENS, "Queries."),
    "r": (TOKENS, "Queries, called receptance in RWKV."),
    "k": (TOKENS, "Keys."),
    "v": ("Tensor, [B, T, HV, V], HV a multiple of H", "Values."),
    "g": (GATES, "Natural logarithm of the decays."),
    "gk": (TOKENS, "Natural logarithm of the decays of key channels."),
    "gv": ("Tensor, [B, T, HV, V], optional", "Natural logarithm of the decays of value channels."),
    "g_gamma": ("Tensor, [HV]", "The log decay of each head, in place of g."),
    "w": (TOKENS, "Natural logarithm of the decays of key channels."),
    "u": ("Tensor, [H, K]", "The bonus of each token's own key."),
    "a": (TOKENS, "The key that reads the state before it decays."),
    "b": (TOKENS, "The key under which that is written back."),
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
    "kk": (TOKENS, "The removal key."),
    "beta": (GATES, "Write strengths; 1 if None where it is optional."),
    "log_alpha": ("Tensor, [B, T, H]", "Natural logarithm of the decays of the state."),
    "log_mu": ("Tensor, [B, T, H]", "Natural logarithm of the decays of the momentum."),
    "eta": ("Tensor, [B, T, H]", "What errors add to the momentum; 1 if None."),
    "use_p_times_alpha": ("bool", "p reads the state after its decay: multiply p by it."),
    "s": ("Tensor, [B, T, H, M]", "Weights of the M slots that each token writes to."),
    "p": ("Tensor, [B, T, H, K], or None", "The key that reads from the state; k if None."),
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
    "cu_seq_lens_q": ("Tensor of int, [N + 1], optional", "In place of cu_seqlens."),
    "seq_idx": ("Tensor of int, [1, T], optional", "In place of cu_seqlens: sequences' numbers."),
}


def described(name: str, types: Types) -> tuple[str, str]:
    """The type and the description of a parameter; ``types`` replace those of the table."""
    kind, text = PARAMETERS[name]
    replaced = types.get(name, kind)
    return replaced if isinstance(replaced, tuple) else (replaced, text)


def signature(text: str, types: Types, returns: str) -> inspect.Signature:
    """The signature of this text; ``name=value`` has another default than its type says."""
    return inspect.Signature([*_parameters(text, types)], return_annotation=returns)


def _parameters(text: str, types: Types) -> Iterator[inspect.Parameter]:
    place: Any = inspect.Parameter.POSITIONAL_OR_KEYWORD
    for item in text.split():
        name, _, value = item.strip("*").partition("=")
        if not name:
            place = inspect.Parameter.KEYWORD_ONLY
        elif item.startswith("**"):
            yield inspect.Parameter(name, inspect.Parameter.VAR_KEYWORD, annotation="Any")
        else:
            annotation, default = _annotated(name, described(name, types)[0])
            if value:
                default = ast.literal_eval(value)
                annotation += " | None" * (default is None)
            yield inspect.Parameter(name, place, default=default, annotation=annotation)


def _annotated(name: str, kind: str) -> tuple[str, object]:
    """An annotation and a default, none if the parameter is required."""
    if name in HINTS or name in ABSENT:
        return (HINTS | ABSENT)[name]
    words = re.findall(r"(?:^|, or )(\w+)", kind)
    annotation = " | ".join("Pair" if x == "pair" else x for x in words)
    if annotation == "bool":
        return annotation, False
    if kind.endswith("optional"):
        return f"{annotation} | None", None
    return annotation, inspect.Parameter.empty
