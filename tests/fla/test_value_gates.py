"""Decays of value channels in linattn.torch.fla: gv."""

from itertools import pairwise

import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed")

from fla_cases import CUTS, B, H, K, T, V, rand  # noqa: E402
from fla_twins import grouped, near, operands, outer, read, recur  # noqa: E402

from linattn.torch import fla  # noqa: E402


def twin(q, k, v, start, gv, g=None, gk=None, beta=None):
    """GLA, or with beta the gated delta rule."""

    def step(s, q, k, v, gv, g, gk, beta):
        s = (g[..., None] + gk)[..., None].exp() * s * gv[..., None, :].exp()
        v = v if with_beta is None else beta * (v - read(s, k))
        s = s + outer(k, v)
        return s, K**-0.5 * read(s, q)

    with_beta = beta
    q, k = grouped(v, q, k)
    none = v[..., 0] * 0
    beta = none if beta is None else beta
    given = none if g is None else g, k * 0 if gk is None else gk
    beta = beta if beta.ndim == 4 else beta.unsqueeze(-1)
    return recur(step, start, q, k, v, gv, *given, beta)


def make(batch=B):
    x = operands(2 * H, batch)
    return {key: x[key] for key in ("q", "k", "v", "g", "gk", "beta")} | {
        "gv": -rand(batch, T, 2 * H, V, seed=11).abs()
    }


GLA = fla.fused_recurrent_gla, "q k v gv"
DELTA = fla.fused_recurrent_gated_delta_rule, "q k v gv beta"
CASES = [GLA, (GLA[0], "q k v gv gk"), DELTA, (DELTA[0], "q k v gv beta g"),
         (DELTA[0], "q k v gv beta gk"), (DELTA[0], "q k v gv beta g gk")]  # fmt: skip


@pytest.mark.parametrize(("run", "names"), CASES)
def test_against_the_twin(run, names):
    everything = make()
    x = {key: everything[key].requires_grad_() for key in names.split()}
    start = rand(B, 2 * H, K, V, seed=20).requires_grad_()
    o, s = run(**x, initial_state=start, output_final_state=True)
    want, state = twin(**x, start=start)
    near(o, want, 1e-13)
    near(s, state, 1e-13)
    also = [*x.values(), start]
    expected = torch.autograd.grad(want.square().sum() + state.sum(), also)
    found = torch.autograd.grad(o.square().sum() + s.sum(), also)
    for y, z in zip(found, expected, strict=True):
        near(y, z, 1e-12)
    again, turned = run(**x, initial_state=start.mT, output_final_state=True, state_v_first=True)
    assert torch.equal(o, again) and torch.equal(s, turned.mT)
    alone, nothing = run(**x)
    assert nothing is None
    near(alone, twin(**x, start=torch.zeros(B, 2 * H, K, V))[0], 1e-13)


@pytest.mark.parametrize(("run", "names"), [GLA, DELTA])
def test_packed(run, names):
    everything = make(1)
    x = {key: everything[key] for key in names.split()}
    starts = rand(3, 2 * H, K, V, seed=20)
    o, s = run(**x, cu_seqlens=list(CUTS), initial_state=starts, output_final_state=True)
    for i, (begin, end) in enumerate(pairwise(CUTS)):
        if begin == end:
            assert torch.equal(s[i], starts[i])
            continue
        part = {key: y[:, begin:end] for key, y in x.items()}
        want, state = twin(**part, start=starts[i : i + 1])
        near(o[:, begin:end], want, 1e-13)
        near(s[i : i + 1], state, 1e-13)


def test_what_the_gate_computes():
    """A raw gate, and a strength of each value channel."""
    x = make()
    x.pop("gk")
    A_log, bias = rand(2 * H, seed=12), rand(2 * H, seed=13)
    x["beta"] = rand(B, T, 2 * H, V, seed=14).sigmoid()
    o, _ = fla.fused_recurrent_gated_delta_rule(**x, use_gate_in_kernel=True, A_log=A_log,
                                                dt_bias=bias)  # fmt: skip
    g = -A_log.exp() * torch.nn.functional.softplus(x["g"] + bias)
    near(o, twin(**x | {"g": g}, start=torch.zeros(B, 2 * H, K, V))[0], 1e-12)


def test_errors():
    x = make()
    q, k, v, gv = (x[key] for key in ("q", "k", "v", "gv"))
    with pytest.raises(ValueError, match=r"fused_recurrent_gla: gv has shape .*HV, V"):
        fla.fused_recurrent_gla(q, k, v, gv=gv[..., 0])
    with pytest.raises(ValueError, match=r"initial_state has shape .*\[N, HV, K, V\]"):
        fla.fused_recurrent_gla(q, k, v, gv=gv, initial_state=torch.zeros(B, 2 * H, V, K))
