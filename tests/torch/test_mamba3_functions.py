"""The functions of Mamba-3 in the stand-in for mamba_ssm, against the recurrence in float64."""

import math
from functools import partial

import pytest
import torch
from mamba3_twin import mimo, siso
from mamba_cases import DTYPES, agree, check, errors, normal

from linattn.torch.mamba_ssm._mamba3 import Memory, Rows, whole
from linattn.torch.mamba_ssm.ops.cute.mamba3.mamba3_step_fn import mamba3_step_fn
from linattn.torch.mamba_ssm.ops.tilelang.mamba3.mamba3_mimo import mamba3_mimo
from linattn.torch.mamba_ssm.ops.triton.mamba3.mamba3_mimo_rotary_step import (
    apply_rotary_qk_inference_fwd,
)
from linattn.torch.mamba_ssm.ops.triton.mamba3.mamba3_siso_combined import (
    mamba3_siso_combined,
)
from linattn.torch.mamba_ssm.ops.triton.mamba3.mamba3_siso_step import (
    mamba3_siso_step,
)

BATCH, N, HEADS, WIDTH, VALUES, RANK = 2, 11, 4, 8, 3, 3
EACH_DTYPE = pytest.mark.parametrize("dtype", DTYPES)


def rank_one(dtype=torch.float64, batch=BATCH, n=N, groups=2, angles=2):
    """Q to Z of `mamba3_siso_combined`."""
    shapes = [
        (batch, n, groups, WIDTH), (batch, n, groups, WIDTH), (batch, n, HEADS, VALUES),
        *3 * ((batch, HEADS, n),), (HEADS, WIDTH), (HEADS, WIDTH), (batch, n, HEADS, angles),
        (HEADS,), (batch, n, HEADS, VALUES),
    ]  # fmt: skip
    return numbered(shapes, dtype)


def rank_more(dtype=torch.float64, batch=BATCH, n=N, groups=2, angles=2):
    """Q to Z of `mamba3_mimo`."""
    q, v, weight = (batch, n, RANK, groups, WIDTH), (batch, n, HEADS, VALUES), (HEADS, RANK, VALUES)
    shapes = [
        q, q, v, *3 * ((batch, HEADS, n),), *2 * ((HEADS, RANK, WIDTH),), *3 * (weight,),
        (batch, n, HEADS, angles), (HEADS,), v,
    ]  # fmt: skip
    return numbered(shapes, dtype)


def numbered(shapes, dtype):
    """Operands of these shapes; the fourth and fifth are log decays and time steps."""
    x = [normal(*shape, dtype=dtype, seed=i) for i, shape in enumerate(shapes)]
    with torch.no_grad():
        x[3].abs_().neg_()
        x[4].abs_()
    return x


def states_of(sequences, dtype=torch.float64):
    shapes = (HEADS, 2), (HEADS, VALUES, WIDTH), (HEADS, WIDTH), (HEADS, VALUES)
    return [normal(sequences, *s, dtype=dtype, seed=20 + i) for i, s in enumerate(shapes)]


def modulo(results):
    """Results with complex numbers in the place of angles, of which 2 pi is 0."""
    y, angles, *others = results
    return y, torch.cat([angles.cos(), angles.sin()], -1), *others


def with_states(function, *operands):
    *given, angles, s, k, v = operands
    return modulo(function(*given, (angles, s, k, v)))


def combined(*operands, **options):
    *given, states = operands
    return mamba3_siso_combined(*given, states, return_final_states=True, **options)


def whole_mimo(*operands, **options):
    options = {"chunk_size": 16, "rotary_dim_divisor": 4, "dtype": operands[0].dtype} | options
    return mamba3_mimo(*operands, **options)


@EACH_DTYPE
@pytest.mark.parametrize("groups", [1, 2, 4])
def test_rank_one(dtype, groups):
    given = rank_one(dtype, groups=groups)
    check(lambda *x: modulo(combined(*x, None)), lambda *x: modulo(siso(*x)), given, dtype)


@EACH_DTYPE
def test_rank_one_from_states(dtype):
    given = rank_one(dtype) + states_of(BATCH, dtype)
    check(partial(with_states, combined), partial(with_states, siso), given, dtype)


@EACH_DTYPE
@pytest.mark.parametrize("angles", [1, 4])
def test_rank_more(dtype, angles):
    given = rank_more(dtype, angles=angles)
    ours = partial(whole_mimo, return_state=True)
    check(lambda *x: modulo(ours(*x)), lambda *x: modulo(mimo(*x)), given, dtype)


def test_rank_more_without_what_is_optional():
    given = rank_more()
    for i in (9, 10, 12, 13):  # MIMO_Z, MIMO_Out, D, Z
        given[i] = None
    check(whole_mimo, lambda *x: mimo(*x)[0], given, torch.float64)


def test_rank_one_without_what_is_optional():
    check(mamba3_siso_combined, lambda *x: siso(*x)[0], rank_one()[:9], torch.float64)


@pytest.mark.parametrize("flat", [True, False])
def test_norm_before_the_gate(flat):
    weight = normal(*((HEADS * VALUES,) if flat else (HEADS, VALUES)), seed=30)

    def ours(*x):
        options = {"outproj_norm_weight": x[-1], "outproj_norm_eps": 0.1}
        return whole_mimo(*x[:-1], fuse_pregate_headwise_rms_norm=True, **options)

    def expected(*x):
        return mimo(*x[:-1], norm=(x[-1].view(HEADS, VALUES), 0.1))[0]

    check(ours, expected, [*rank_more(), weight], torch.float64)


def test_angles_of_long_sequences():
    """Angles that float32 would sum to a thousand radians keep the roundings of one turn."""
    n, one = 20_000, torch.ones(1, 1, 1)
    dt = torch.full((1, 1, n), 0.03)
    q, zero = torch.ones(1, n, 1, 2), torch.zeros(1, 1, n)
    _, angle, *_ = combined(
        q, q, q[..., :1], zero, dt, zero, 0 * q[0, 0], 0 * q[0, 0], 9 * one.expand(1, n, 1, 1),
        None, None, None,
    )  # fmt: skip
    rate = dt[0, 0, 0].double() * math.tanh(9)
    turns = n * rate / 2
    expected = 2 * math.pi * (turns - turns.floor())
    eps = torch.finfo(torch.float32).eps  # of a step, of its n terms in float64, and of the angle
    assert abs(angle.item() - expected) <= 2 * math.pi * (turns * eps + 2 * eps)


def at(given, place):
    """The operands of one token, or of those in a slice."""
    tokens = (0, 1, 2, 8, 10) if len(given) == 11 else (0, 1, 2, 11, 13)
    return [
        x[:, place] if i in tokens else x[..., place] if i in (3, 4, 5) else x
        for i, x in enumerate(given)
    ]


@pytest.mark.parametrize("cut", [1, 4, N - 1])
def test_cut_sequences_continue(cut):
    given, start = rank_one(), states_of(BATCH)
    y, *middle = combined(*at(given, slice(cut)), start)
    z, *end = combined(*at(given, slice(cut, None)), tuple(middle))
    expected = combined(*given, start)
    for x, wanted in zip((torch.cat([y, z], 1), *end), expected, strict=True):
        assert agree(x, wanted, torch.float64)


def test_cut_sequences_of_more_ranks_continue():
    """Through the states that no function of mamba_ssm takes."""
    Q, K, V, ADT, DT, Trap, Q_bias, K_bias, MIMO_V, _, _, Angles, D, _ = rank_more()
    V = V.unsqueeze(2) * MIMO_V.transpose(0, 1)

    def run(at, start):
        rows = Rows(BATCH, len(range(N)[at]), None)
        tokens, numbers = (x[:, at] for x in (Q, K, V)), (x[..., at] for x in (ADT, DT, Trap))
        return whole(*tokens, *numbers, Q_bias, K_bias, Angles[:, at], D, start, rows, False)

    expected, end = run(slice(None), None)
    y, middle = run(slice(5), None)
    z, after = run(slice(5, None), Memory(*(x.detach() for x in middle)))
    assert agree(torch.cat([y, z], 1), expected, torch.float64)
    assert all(agree(x, y, torch.float64) for x, y in zip(after, end, strict=True))


BOUNDS = torch.tensor([0, 0, 4, 5, 5, N, N])


@pytest.mark.parametrize("bounds", [BOUNDS, BOUNDS.int()])
def test_packed_sequences_stay_apart(bounds):
    """Empty ones too, which keep their states."""
    given, count = rank_one(batch=1), len(bounds) - 1
    starts = states_of(count)
    with torch.no_grad():
        starts[0].remainder_(2 * math.pi)
    found = combined(*given, tuple(starts), cu_seqlens=bounds)
    rows = []
    for i, (begin, end) in enumerate(bounds.tolist()[j : j + 2] for j in range(count)):
        own = [x[i : i + 1] for x in starts]
        if begin == end:
            assert all(torch.equal(x[i], y[0]) for x, y in zip(found[1:], own, strict=True))
            continue
        y, *states = combined(*at(given, slice(begin, end)), tuple(own))
        rows.append(y)
        for x, expected in zip(found[1:], states, strict=True):
            assert agree(x[i : i + 1], expected, torch.float64)
    assert agree(found[0], torch.cat(rows, 1), torch.float64)


def test_packed_sequences_of_more_ranks():
    given, bounds = rank_more(batch=1), torch.tensor([0, 4, 5, N])
    found = whole_mimo(*given, cu_seqlens=bounds, return_state=True)
    for i, (begin, end) in enumerate([(0, 4), (4, 5), (5, N)]):
        y, *states = whole_mimo(*at(given, slice(begin, end)), return_state=True)
        assert agree(found[0][:, begin:end], y, torch.float64)
        for x, expected in zip(found[1:], states, strict=True):
            assert agree(x[i : i + 1], expected, torch.float64)


def test_steps_of_rank_one():
    given, states = rank_one(), tuple(states_of(BATCH))
    expected = combined(*given, states)
    rows = []
    for t in range(N):
        y, states = mamba3_siso_step(*at(given, t), states)
        rows.append(y)
    for x, wanted in zip((torch.stack(rows, 1), *states), expected, strict=True):
        assert agree(x, wanted, torch.float64)


def steps(given, states, write):
    """`mamba3_mimo` token by token; ``write`` says which tensors are overwritten."""
    Q, K, V, ADT, DT, Trap, Q_bias, K_bias, MIMO_V, MIMO_Z, MIMO_Out, Angles, D, Z = given
    ranks = [None if x is None else x.transpose(0, 1) for x in (MIMO_V, MIMO_Z, MIMO_Out)]
    angles, s, k0, v0 = states
    rows = []
    for t in range(V.shape[1]):
        dt, mix = DT[..., t], Trap[..., t].sigmoid()
        q, k = (x[:, t].repeat_interleave(HEADS // x.shape[3], 2) for x in (Q, K))
        q, k, angles = apply_rotary_qk_inference_fwd(
            q, k, angles, Angles[:, t], dt, Q_bias.transpose(0, 1), K_bias.transpose(0, 1),
            inplace=write == "all", rotate_pairwise=False,
        )  # fmt: skip
        out = torch.empty_like(V[:, t] if MIMO_Out is not None else V[:, t, None] * ranks[0])
        after = None if write else torch.empty_like(s)
        mamba3_step_fn(
            s, k0, v0, ADT[..., t] / dt, k, q, D, V[:, t], dt, mix, ranks[0], ranks[2], after, out,
            None if Z is None else Z[:, t], ranks[1],
        )  # fmt: skip
        s, k0, v0 = s if write else after, k, V[:, t]
        rows.append(out)
    return torch.stack(rows, 1), angles, s, k0, v0


def zeros(dtype):
    shapes = (HEADS, 2), (HEADS, VALUES, WIDTH), (RANK, HEADS, WIDTH), (HEADS, VALUES)
    return [torch.zeros(BATCH, *shape, dtype=dtype) for shape in shapes]


@pytest.mark.parametrize("write", ["all", "state", ""])
@EACH_DTYPE
def test_steps_of_more_ranks(dtype, write):
    """Without gradients: states in place, or in other tensors."""
    given = [x.detach() for x in rank_more(dtype)]
    expected = mimo(*(x.double() for x in given))
    states = zeros(dtype)
    states[1] = states[1].float() if dtype is torch.bfloat16 else states[1]
    memory = states[1].data_ptr()
    found = steps([x.clone() for x in given], states, write)
    assert (found[2].data_ptr() == memory) == bool(write)
    if dtype is torch.bfloat16:  # keys and angles are rounded between tokens
        error = (found[0] - expected[0]).abs().max() / expected[0].abs().max()
        assert error < 2 * N * torch.finfo(dtype).eps
        return
    for x, wanted in zip(modulo(found), modulo(expected), strict=True):
        assert agree(x, wanted, dtype)


@pytest.mark.parametrize("without", [(), (9, 13), (10,), (9, 10, 13)])
def test_gradients_through_steps(without):
    given = rank_more()
    for i in without:
        given[i] = None

    def ours(*x):
        return modulo(steps(x, zeros(torch.float64), "state"))

    check(ours, lambda *x: modulo(mimo(*x)), given, torch.float64)


def test_the_other_way_round():
    q, angles, rates = normal(1, 2, 3, 8), normal(1, 3, 4, seed=1), normal(1, 3, 4, seed=2)
    for pairwise in (True, False):
        options = {"rotate_pairwise": pairwise}
        x, y, _ = apply_rotary_qk_inference_fwd(q, q, angles, rates, angles[..., 0], **options)
        assert torch.equal(x, y) and not agree(x, q, torch.float64)
        still = torch.zeros_like(angles[..., 0])
        _, after, state = apply_rotary_qk_inference_fwd(
            x, x, angles + math.pi * rates.tanh() * angles[..., :1], rates, still, conjugate=True,
            **options,
        )  # fmt: skip
        assert agree(after, q, torch.float64)
        assert state.min() >= 0 and state.max() < 2 * math.pi


def changed(i, x, make=rank_one):
    given = make()
    given[i] = x
    return given


ERRORS = {
    "mamba3_siso_combined: V is None": (TypeError, lambda: mamba3_siso_combined(*changed(2, None))),
    "ADT has shape (2, 4, 7); expected (2, 4, 11), (batch, nheads, seqlen)": lambda: (
        mamba3_siso_combined(*changed(3, normal(BATCH, HEADS, 7)))
    ),
    "mamba3_mimo: Q has shape (2, 11, 3, 8); expected (batch, seqlen, mimo_rank, nheads_qk": (
        ValueError,
        lambda: whole_mimo(*changed(0, normal(BATCH, N, RANK, WIDTH), rank_more)),
    ),
    "Q has 3 heads; expected a divisor of 4": lambda: mamba3_siso_combined(*rank_one(groups=3)),
    "Angles has 5 numbers a head, and Q 8 channels": lambda: whole_mimo(*rank_more(angles=5)),
    "seqlen is 0": lambda: mamba3_siso_combined(*rank_one(n=0)),
    "cu_seqlens ends at 9, with batch 1 and seqlen 11": lambda: mamba3_siso_combined(
        *rank_one(batch=1), cu_seqlens=torch.tensor([0, 9])
    ),
    "Input_States is a Tensor; expected a tuple of angles, states, keys, values": lambda: combined(
        *rank_one(), torch.ones(3)
    ),
    "Input_States, keys has shape (3, 4, 8); expected (2, 4, 8), (sequences, nheads,": lambda: (
        combined(*rank_one(), (*states_of(2)[:2], *states_of(3)[2:]))
    ),
    "apply_rotary_qk_inference_fwd: dt has shape (1,)": lambda: apply_rotary_qk_inference_fwd(
        normal(1, 1, 1, 2), normal(1, 1, 1, 2), normal(1, 1, 1), normal(1, 1, 1), normal(1)
    ),
    "mamba3_step_fn: out is None": (TypeError, lambda: mamba3_step_fn(*map(normal_of, STEP))),
}
#: The axes of `mamba3_step_fn`'s operands, each of one.
STEP = (4, 4, 3, 2, 4, 4, 1, 3, 2, 2, 3)


def normal_of(axes):
    return normal(*(1,) * axes)


test_errors = errors(ERRORS, ValueError)
