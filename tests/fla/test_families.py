"""Every rule of linattn.torch.fla against its twin: outputs, states, gradients, packed, 16 bits."""

import warnings
from itertools import pairwise

import fla_package
import pytest
import torch
from fla_cases import CASES, CUTS, B, H, K, T
from fla_families import FAMILIES, apply, parts
from fla_twins import near

EACH = pytest.mark.parametrize("name", FAMILIES)
#: Gates, strengths and decays, which may have 32 bits beside tokens of 16.
GATES = {"g", "gk", "gv", "w", "beta", "b", "lamb", "g_atk", "beta_atk", "log_alpha", "log_mu",
         "eta"}  # fmt: skip


def gradients(o, state, leaves):
    loss = o.square().sum() + sum(x.square().sum() for x in parts(state))
    return torch.autograd.grad(loss, leaves)


def all_near(found, want, tolerance):
    for x, y in zip(found, want, strict=True):
        near(x, y, tolerance)


@EACH
def test_against_the_twin(name):
    family = FAMILIES[name]
    of_o, of_state, of_gradients = family.tolerances
    x = {key: y.requires_grad_() for key, y in family.make(B).items()}
    start = apply(torch.Tensor.requires_grad_, family.starts(B))
    leaves = [*x.values(), *parts(start)]
    for given in (True, False):
        want, state = family.twin(**x, start=start if given else family.nothing(start))
        own = leaves if given else [*x.values()]
        expected = gradients(want, state if given else None, own)
        for form in family.forms:
            first = (start,) if given else ()
            o, end = family.run(form, x, *first, output_final_state=given)
            assert o.is_contiguous()
            near(o, want, of_o)
            if given:
                all_near(parts(end), parts(state), of_state)
            else:
                assert (end[0] if isinstance(end, tuple) else end) is None
            found = gradients(o, end if given else None, own)
            all_near(map(family.fold, found), map(family.fold, expected), of_gradients)


@pytest.mark.parametrize("name", [x for x in FAMILIES if FAMILIES[x].packed])
def test_packed(name):
    """With cu_seqlens, an empty sequence among them, as one by one."""
    family = FAMILIES[name]
    x, start = family.make(1), family.starts(3)
    for form in family.packed:
        o, end = family.run(form, x, start, output_final_state=True, cu_seqlens=list(CUTS))
        again, _ = family.run(form, x, start, cu_seqlens=torch.tensor(CUTS))
        assert torch.equal(o, again)
        assert [y.shape for y in parts(end)] == [y.shape for y in parts(start)]
        for i, (begin, stop) in enumerate(pairwise(CUTS)):
            own, after = (parts(family.sequence(y, i)) for y in (start, end))
            if begin == stop:
                assert all(torch.equal(y, z) for y, z in zip(after, own, strict=True))
                continue
            part = {
                key: y if key in family.whole else y[:, begin * (n := y.shape[1] // T) : stop * n]
                for key, y in x.items()
            }
            first = family.sequence(start, i)
            alone = family.run(form, part, first, output_final_state=True)
            for (want, state), tolerances in (
                (family.twin(**part, start=first), family.tolerances),
                (alone, (1e-13, 1e-13)),
            ):
                near(o[:, begin:stop], want, tolerances[0])
                all_near(after, parts(state), tolerances[1])


#: Those whose recurrent form also goes from the last token to the first.
REVERSIBLE = [x for x in CASES if x not in ("delta_rule", "gated_delta_rule", "kda", "rwkv7")]


@pytest.mark.parametrize("name", [*REVERSIBLE, "gsa"])
@pytest.mark.parametrize("cuts", [None, CUTS])
def test_reverse(name, cuts):
    """Sequence by sequence."""
    family = FAMILIES[name]
    x, start = family.make(1 if cuts else B), family.starts(3 if cuts else B)
    more = {"cu_seqlens": list(cuts)} if cuts else {}
    o, end = family.run("fused_recurrent", x, start, reverse=True, output_final_state=True, **more)
    for i, (begin, stop) in enumerate(pairwise(cuts or (0, T))):
        own, after = ((family.sequence(y, i) if cuts else y) for y in (start, end))
        part = {key: y if key in family.whole else y[:, begin:stop].flip(1) for key, y in x.items()}
        alone, state = family.run("chunk", part, own, output_final_state=True)
        all_near(parts(after), parts(state), 1e-13)
        if begin < stop:
            near(o[:, begin:stop], alone.flip(1), 1e-13)
    first = [(), (family.nothing(start),)]
    found, zeros = (family.run("fused_recurrent", x, *y, reverse=True, **more)[0] for y in first)
    near(found, zeros, 1e-13)


@pytest.mark.parametrize("name", [x for x in FAMILIES if FAMILIES[x].by_value])
def test_states_by_value_first(name):
    """The first of a state's tensors is transposed."""
    family, first = FAMILIES[name], lambda state: parts(state)[0]
    x, start = family.make(B), family.starts(B)
    turned = (start[0].mT, *start[1:]) if isinstance(start, tuple) else start.mT
    for form in family.forms:
        o, end = family.run(form, x, start, output_final_state=True)
        for option in family.by_value:
            with warnings.catch_warnings(record=True) as caught:
                warnings.simplefilter("always")
                given = {"output_final_state": True, option: True}
                same, after = family.run(form, x, turned, **given)
            assert torch.equal(o, same) and torch.equal(first(end), first(after).mT)
            deprecated = len(family.by_value) > 1 and option != "state_v_first"
            assert deprecated is any(y.category is DeprecationWarning for y in caught)


@EACH
def test_sixteen_bits(name):
    """Tokens of bfloat16, gates too or of float32; states are of float32."""
    family = FAMILIES[name]
    x = {key: y.bfloat16() for key, y in family.make(B).items()}
    wide = {key: y.double() for key, y in x.items()}
    want, state = family.twin(**wide, start=family.nothing(family.starts(B)))
    mixed = {key: y.float() if key in GATES else y for key, y in x.items()}
    for given in (x, mixed):
        o, end = family.run(family.forms[0], given, output_final_state=True)
        assert o.dtype is torch.bfloat16
        near(o.double(), want, family.half[0])
        assert all(y.dtype is torch.float32 for y in parts(end))
        all_near([y.double() for y in parts(end)], parts(state), family.half[1])


def naive(family, function, **options):
    def run(x, start):
        more = {} if start is None else {"initial_state": start}
        f = getattr(fla_package.naive(family), function)
        return f(**x, **more, output_final_state=True, **options)

    return run


def by_head(family, function):
    """A reference of tensors [B, H, T, ...]."""

    def run(x, _):
        f = getattr(fla_package.naive(family), function)
        found = f(*(y.transpose(1, 2) for y in x.values()))
        o, *state = found if isinstance(found, tuple) else (found,)
        return o.transpose(1, 2), *state

    return run


#: fla's own references; of Comba's, the recurrent one reads the decayed state, as no kernel.
NAIVE = {
    "gla": naive("gla", "naive_recurrent_gla"),
    "linear_attn": naive("linear_attn", "naive_recurrent_linear_attn", normalize=False),
    "simple_gla": naive("simple_gla", "naive_chunk_simple_gla"),
    "gated_delta_rule": naive("gated_delta_rule", "naive_chunk_gated_delta_rule"),
    "kda": lambda x, _: fla_package.naive("kda").naive_recurrent_kda(
        *x.values(), output_final_state=True
    ),
    "momentum_delta_rule": naive("momentum_delta_rule", "recurrent_momentum_delta_rule_ref"),
    "based": by_head("based", "naive_parallel_based"),
    "rebased": by_head("rebased", "naive_parallel_rebased"),
    "comba": naive("comba", "naive_chunk_comba"),
    "gdn2": naive("gdn2", "naive_recurrent_gdn2"),
    "iplr_delta_rule": by_head("generalized_delta_rule/iplr", "iplr_recurrence"),
    "gated_delta_product": naive("gated_delta_product", "naive_recurrent_gated_delta_product",
                                 scale=K**-0.5, num_householder=2),
    **{x: naive(x, f"naive_recurrent_{x}") for x in ("precond_gated_delta_rule", "precond_kda")},
    "gsa": naive("gsa", "naive_recurrent_gsa"),
    "gsa, no gates": naive("gsa", "naive_recurrent_gsa"),
    "abc": by_head("abc", "naive_cumsum_abc"),
    "mesa_net": lambda x, _: fla_package.naive("mesa_net").naive_mesa_net_exact(**x),
    "hgrn": lambda x, start: fla_package.naive("hgrn").naive_recurrent_hgrn(
        *x.values(), start, True
    ),
}  # fmt: skip
#: Tolerances of outputs and states in float32.
SINGLE = dict.fromkeys(NAIVE, (1e-5, 1e-5)) | {"mesa_net": (1e-5, 1e-6), "hgrn": (1e-6, 1e-6)}


@fla_package.needed
@pytest.mark.parametrize("name", NAIVE)
def test_against_fla(name):
    family, from_states = FAMILIES[name], name in ("gsa", "gsa, no gates", "hgrn")
    x = {
        key: (y if key in family.whole or y.ndim < 3 or name == "hgrn" else y[:, :, :H]).float()
        for key, y in family.make(B).items()
    }
    if name == "mesa_net":  # fla's references take as many values as keys
        x["v"] = x["v"][..., :K].contiguous()
    x = {key: y.requires_grad_() for key, y in x.items()}
    start = apply(torch.Tensor.float, family.starts(B)) if from_states else None
    want, *state = NAIVE[name](x, start)
    first = (start,) if from_states else ()
    o, end = family.run(family.forms[0], x, *first, output_final_state=True)
    near(o, want, SINGLE[name][0])
    state = state if state[1:] else parts(*state or [()])
    ends = [[], []] if name == "abc" else [parts(end), state]
    all_near(*ends, SINGLE[name][1])
    # The first one's gradients are others there; the second one divides by sums that are near 0.
    if name in ("precond_gated_delta_rule", "rebased"):
        return
    found, expected = (
        torch.autograd.grad(y.square().sum() + sum(z.sum() for z in states), [*x.values()])
        for y, states in zip((o, want), ends, strict=True)
    )
    all_near(map(family.fold, found), map(family.fold, expected), 1e-5)
