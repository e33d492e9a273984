"""What the rules of linattn.torch.fla refuse: operands, options and states."""

import pytest
import torch
from fla_cases import CUTS, B, H, K, T, V
from fla_families import FAMILIES, FORMS


def one_head(x):
    return x[:, :, :1]


def some_tokens(x):
    return x[:, :5]


def last_gone(x):
    return x[..., 0]


def twice_the_heads(x):
    return torch.cat([x, x], 2)


def four_heads(x):
    return x[:, :, :4]


def by_channel(g):
    return g[..., None].expand(*g.shape, K)


def one_row(x):
    return x[:1]


GDR = "gated_delta_rule"
START = FAMILIES["simple_gla"].starts(B)
RAW = {"use_gate_in_kernel": True, "safe_gate": True, "A_log": torch.zeros(2 * H)}

OTHERS = FAMILIES["gsa"].starts(B)
FUSED = "fused_recurrent"
#: A rule, its form, operands and options that replace others, by functions of these or as they are,
#: and the error.
ERRORS = [
    *(("simple_gla", x, {"g": by_channel}, ValueError, "g has shape") for x in FORMS),
    ("gla", "chunk", {"gk": last_gone}, ValueError, "g has shape"),
    ("gla", FUSED, {"gk": last_gone}, ValueError, "gk has shape"),
    *((GDR, x, {"g": by_channel}, ValueError, "g has shape") for x in FORMS),
    (GDR, FUSED, {"g": None, "gk": torch.ones(B, T, 2 * H)}, ValueError, "gk has shape"),
    (GDR, FUSED, {"g": by_channel, "gk": torch.ones(B, T, 2 * H, K)}, ValueError, "g has shape"),
    *(("kda", x, {"gk": last_gone}, ValueError, "g has shape") for x in FORMS),
    ("rwkv6", "chunk", {"w": last_gone}, ValueError, "w has shape"),
    ("dplr_delta_rule", "chunk", {"gk": last_gone}, ValueError, "gk has shape"),
    ("dplr_delta_rule", "chunk", {"a": last_gone}, ValueError, "a has shape"),
    ("delta_rule", "chunk", {"beta": None}, TypeError, "beta is None; expected a tensor"),
    *((GDR, "chunk", {x: None}, TypeError, f"{x} is None; expected a tensor")
      for x in ("g", "beta")),
    *((x, "chunk", {"gk": None}, TypeError, "g is None; expected a tens") for x in ("kda", "gla")),
    (GDR, "chunk", {"beta": None, "use_beta_sigmoid_in_kernel": True}, TypeError,
     "beta is None; expected a tensor"),
    (GDR, "chunk", {"cp_context": object()}, NotImplementedError, "cp_context is"),
    (GDR, "chunk", {"nosuch": 1}, TypeError, "unexpected keyword nosuch"),
    ("simple_gla", "chunk", {"head_first": True}, TypeError, ".*head_first"),
    ("gla", FUSED, {"gv": torch.ones(B, T, 1, V)}, ValueError,
     r"gv has shape \(2, 11, 1, 5\); expected \(2, 11, 3, 5"),
    ("kda", "chunk", {"return_intermediate_states": True}, NotImplementedError,
     "return_intermediate_states is True"),
    ("kda", "chunk", RAW, ValueError, "lower_bound is None"),
    *(("simple_gla", "chunk", {"start": x}, ValueError,
       r"initial_state has shape .*, \[N, HV, K, V\]")
      for x in (START[:1], START[:, :3], START[:, :1], START[0, 0], START.mT)),
    ("simple_gla", "chunk", {"g": None, "g_gamma": torch.ones(T, 2 * H)}, ValueError,
     r"g_gamma has shape \(11, 6\); expected \(6,\)"),
    (GDR, "chunk", {"q": lambda x: x[0]}, ValueError,
     r"q has shape \(11, 3, 4\); expected \[B, T, H, K\]"),
    (GDR, "chunk", dict.fromkeys(("v", "g", "beta"), four_heads), ValueError,
     "v has shape .* HV a multiple of 3"),
    (GDR, "chunk", {"g": lambda x: x[:, :, :3]}, ValueError,
     r"g has shape \(2, 11, 3\); expected \(2, 11, 6\), \["),
    (GDR, "chunk", {"cu_seqlens": torch.tensor(CUTS)}, ValueError,
     "q has a batch of 2; expected 1 with cu_seqlens"),
    (GDR, "chunk", dict.fromkeys(("q", "k", "v", "g", "beta"), one_row)
     | {"cu_seqlens": torch.tensor(CUTS), "start": START[:1]}, ValueError,
     ".*a state for each sequence of cu_seqlens"),
    (GDR, "chunk", {"start": (START, None)}, TypeError,
     "initial_state is a tuple of 2; expected a tensor"),
    ("comba", "chunk", {"p": one_head}, ValueError, "p has shape .*H, K"),
    ("comba", "chunk", {"beta": one_head}, ValueError, "beta has shape .*HV"),
    ("comba", "chunk", {"g": one_head}, ValueError, "g has shape .*HV"),
    ("comba", "chunk", {"g": None}, TypeError, "g is None; expected a tensor"),
    *(("gdn2", FUSED, {x: last_gone}, ValueError, f"{x} has shape") for x in "bwg"),
    ("gdn2", "chunk", {"cp_context": object()}, NotImplementedError, "cp_context"),
    ("iplr_delta_rule", "chunk", {"a": last_gone}, ValueError, "a has shape"),
    ("gated_delta_product", "chunk", {"num_householder": 3}, ValueError,
     r"k has shape \(2, 22, 3, 4\); expected \(2, 33, 3, 4\)"),
    ("gated_delta_product", "chunk", {"num_householder": 0}, ValueError,
     "num_householder is 0; expected a positive integer"),
    ("gated_delta_product", "chunk", {"g": torch.ones(B, 22, H)}, ValueError, "g has shape"),
    ("gated_delta_product", "chunk", {"v": some_tokens}, ValueError, "v has shape"),
    ("gated_oja_rule", "chunk", {"gv": torch.ones(B, 11, 2 * H)}, ValueError, "gv has shape"),
    ("gated_oja_rule", "chunk", {"head_first": False}, TypeError, "unexpected keyword head_first"),
    *(("precond_gated_delta_rule", "chunk", {x: lambda x: x[..., :1]}, ValueError,
       f"{x} has shape") for x in ("g", "g_atk", "beta_atk")),
    ("precond_gated_delta_rule", "chunk", {"start": (None, torch.zeros(B, 2 * H, K))}, ValueError,
     r"initial_A_state has shape .*\[N, H, K\]"),
    ("precond_gated_delta_rule", "chunk", {"log_atk_scale": torch.zeros(2 * H)}, ValueError,
     "log_atk_scale has shape"),
    ("precond_kda", FUSED, {"g_atk": None}, TypeError, "g_atk is None"),
    *(("gsa", "chunk", {x: lambda x: x[:, :3]}, ValueError, f"{x} has shape") for x in "kvsg"),
    ("abc", "chunk", {"q": lambda x: x[:, :, :2]}, ValueError,
     "q has 2 heads; expected a multiple of 3"),
    ("gsa", FUSED, {"start": (OTHERS[0], OTHERS[1].mT)}, ValueError,
     r"initial_state\[1\] has shape .* \[N, H, M, V\]"),
    ("gsa", "chunk", {"start": OTHERS[0]}, TypeError, "initial_state is a Tensor; expected a pair"),
    ("gsa", "chunk", {"head_first": True}, TypeError, "unexpected keyword head_first"),
    ("gsa", FUSED, {"s": None}, TypeError, "s is None; expected a tensor"),
    ("lightnet", "chunk", {"v": twice_the_heads}, ValueError, "v has shape"),
    ("lightnet", "chunk", {"start": (None, OTHERS[0])}, ValueError,
     r"initial_state\[1\] has shape .*\[N, 1, H, K\]"),
    *(("mesa_net", "chunk", {x: lambda x: x[..., :2]}, ValueError, f"{x} has shape")
      for x in ("g", "beta", "lamb")),
    ("mesa_net", "chunk", {"start": (None, torch.zeros(B, H, V, K))}, ValueError,
     "h_kv_init has shape"),
    ("mesa_net", "chunk", {"max_CG_iteration": -1}, ValueError,
     "max_CG_iteration is -1; expected an integer of at lea"),
    ("momentum_delta_rule", "chunk", {"p": torch.ones(B, 11, H, V)}, ValueError,
     r"p has shape .*; expected \(2, 11, 3, 4\), \[B, T, H, K\]"),
    ("momentum_delta_rule", "chunk", {"log_mu": torch.ones(B, 11, H, K)}, ValueError,
     r"log_mu has shape .*; expected \(2, 11, 3\), \[B, T, H\]"),
    ("momentum_delta_rule", "chunk", {"eta": 1.0}, TypeError, "eta is a float; expected a tensor"),
    ("momentum_delta_rule", "chunk", {"v": twice_the_heads}, ValueError, "v has shape"),
    ("momentum_delta_rule", "chunk", {"start": torch.ones(B, H, K, V)}, ValueError,
     r"initial_state has shape .*\[2, N, H, K, V\]"),
    ("hgrn", FUSED, {"x": lambda x: x[0]}, ValueError,
     r"x has shape \(11, 7\); expected \[B, T, D\]"),
    ("hgrn", FUSED, {"g": lambda x: x[..., :2]}, ValueError, "g has shape"),
    ("hgrn", FUSED, {"cu_seqlens": torch.tensor(CUTS)}, ValueError,
     "x has a batch of 2; expected 1"),
    ("hgrn", FUSED, {"start": torch.ones(B, 2)}, ValueError, "initial_state has shape"),
    ("hgrn", "chunk", {"g": None}, TypeError, "g is None; expected a tensor"),
    ("based", "parallel", {"k": some_tokens}, ValueError, r"k has shape .*; expected \(2, 11, 3"),
    ("based", "fused_chunk", {"q": None}, TypeError, "q is None"),
    ("rebased", "parallel", {"v": twice_the_heads}, ValueError, r"v has shape .*\[B, T, H, V\]"),
    ("gla, gv ", FUSED, {"gv": last_gone}, ValueError, "gv has shape .*HV, V"),
    ("gla, gv ", FUSED, {"start": torch.zeros(B, 2 * H, V, K)}, ValueError,
     r"initial_state has shape .*\[N, HV, K, V\]"),
]  # fmt: skip


@pytest.mark.parametrize(("name", "form", "changes", "error", "words"), ERRORS)
def test_errors(name, form, changes, error, words):
    family, start = FAMILIES[name], [changes["start"]] if "start" in changes else []
    x = family.make(B)
    changed = {y: z(x[y]) if callable(z) else z for y, z in changes.items() if y != "start"}
    options = {y: z for y, z in changed.items() if y not in x}
    with pytest.raises(error, match=f"{form}_{name.partition(',')[0]}: {words}"):
        family.run(form, {y: changed.get(y, z) for y, z in x.items()}, *start, **options)


@pytest.mark.parametrize("name", ["gsa", "gsa, no gates", "abc", "gated_oja_rule", "mesa_net"])
def test_transforms(name):
    """Of functions that have no rules for them."""
    family = FAMILIES[name]
    x = family.make(B)
    for form in family.forms:

        def output(q, form=form):
            return family.run(form, x | {"q": q})[0]

        words = f"{form}_{name.partition(',')[0]}: torch.func's transforms .* use backward"
        with pytest.raises(NotImplementedError, match=words):
            torch.func.grad(lambda q: output(q).sum())(x["q"])
        with pytest.raises(NotImplementedError, match=words):
            torch.vmap(output)(x["q"][None])
