"""Sequences that are cut at multiples of 64 tokens have the bits of the uncut ones."""

import copy
import pickle
from itertools import pairwise

import numpy as np
import pytest
from bounds import close
from slow import each, grid, looped
from stages import forced
from states import flat
from table import CARRIED, CASES, COMPLEX, FIRST, GATES, allowed, covering, same

import linattn
from linattn import ExactState, State
from linattn.feature_maps import NAMES, PositiveRandomFeatures, RandomFourierFeatures

N = 1100
EXACT = {"return_state": "exact"}
EACH = each(CASES)
COVERING = covering(CASES)
#: Those whose steps have the bits of a sequence.
STEPS_ALIKE = {"momentum_delta", "causal_conv1d", "linear_scan", "wkv", "selective_scan"}


def arrays(state):
    """Those of a state, and what rounding took from it."""
    lost = getattr(state, "lost", None)
    return [*flat([state]), *([] if lost is None else [lost])]


def random_cuts(rng, n=N):
    """0, some multiples of 64, and n."""
    places = np.arange(64, n, 64)
    return [0, *np.sort(rng.choice(places, rng.integers(1, 5), replace=False)).tolist(), n]


def in_pieces(case, operands, cuts, *, carry=lambda state: state, lengths=None, **more):
    """The output and the last state of a sequence that is computed piece by piece."""
    outputs, state = [], None
    for begin, end in pairwise(cuts):
        if lengths is not None:
            more["key_lengths"] = np.clip(lengths - begin, 0, end - begin)
        piece = case.tokens(operands, begin, end)
        o, state = case.forward(piece, initial_state=carry(state), **(EXACT | more))
        outputs.append(o)
    if case.reverse:
        outputs.reverse()
    return np.concatenate(outputs, 1), state


def check(case, operands, rng, **more):
    o, last = case.forward(operands, **(EXACT | more))
    found, end = in_pieces(case, operands, random_cuts(rng), **more)
    assert same(found, o)
    assert same(arrays(end), arrays(last))
    return o, last


@pytest.mark.unsanitized
@grid(
    lambda case, size, dtype: (
        case in (FIRST if size[0] == 130 or dtype == "float64" else COVERING)
        and (dtype == "float32" or size == (70, 17))
    ),
    case=CASES,
    size=[(6, 5), (70, 17), (130, 70)],
    dtype=["float32", "float64", "float16"],
)
def test_random_cuts(case, size, dtype):
    d, m = size
    rng = np.random.default_rng([d, m])
    for gates in GATES if "g" in case.letters else ("weak",):
        with np.errstate(over="ignore"):
            operands = case.operands((2,), N, d=d, m=m, dtype=dtype, gates=gates)
        check(case, operands, rng)


def test_without_values():
    """A state without columns has sums of keys, which are carried."""
    for seed in range(4):
        rng = np.random.default_rng(seed)
        q, k, v = (rng.standard_normal((65, width)) for width in (8, 8, 0))
        operands = q, k, v, *(5 * rng.standard_normal((2, 65)))
        first, second = ([x[rows] for x in operands] for rows in (slice(64), slice(64, 65)))
        _, last = linattn.mlstm(*operands, **EXACT)
        _, before = linattn.mlstm(*first, **EXACT)
        _, end = linattn.mlstm(*second, initial_state=before, **EXACT)
        assert same(arrays(end), arrays(last))


@EACH
@looped(dtype=["float32", "float64"])
def test_close_to_other_calls(case, dtype):
    operands = case.operands((2,), N, d=20, m=5, dtype=dtype, gates="resets")
    for x, y in zip(*(flat(case.forward(operands, **y)) for y in ({}, EXACT)), strict=True):
        close(x, y, atol=allowed(x, y))


@each([x for x in CASES if not {*"gfw"} & {*x.letters}])
def test_without_gates(case):
    """Long sequences of other calls have these bits too."""
    operands = case.operands((2,), N, d=20, m=5, dtype="float32")
    o, last = case.forward(operands)
    found, end = case.forward(operands, **EXACT)
    assert same(found, o)
    assert same(flat([end]), flat([last]))


@each([x for x in CASES if not x.row.compensated])
@pytest.mark.parametrize("dtype", ["float32", "float16", "float64"])
def test_a_cut_anywhere(case, dtype):
    """Those that go token by token lose nothing: ordinary states are exact at any cut."""
    rng = np.random.default_rng(0)
    for d in (1, 4, 9, 20) if "weight" in case.letters else (20,):
        operands = case.operands((2,), N, d=d, m=21, dtype=dtype)
        cuts = [0, *np.sort(rng.integers(0, N, 5)).tolist(), N]
        o, last = case.forward(operands)
        found, end = in_pieces(case, operands, cuts, return_state=True)
        assert same(found, o)
        assert same(flat([end]), flat([last]))


@each([x for x in CASES + COMPLEX if x.name in STEPS_ALIKE])
def test_steps_alike(case):
    """Steps of these have the bits of a sequence: of one token, and of all but wkv's any.

    Those of selective_scan sum in another order what they read of the state.
    """
    n = 1 if case.name == "wkv" else 70
    operands = case.operands((2,), n, d=20, m=17, dtype="float32")
    state = start = case.state((2,), dtype="float32", d=20, m=17)
    o, last = case.forward(operands, initial_state=start)
    outputs = []
    for t in range(n)[:: -1 if case.reverse else 1]:
        y, state = case.one_step(operands, t, state)
        outputs.append(y)
    if case.name != "selective_scan":
        assert same(np.stack(outputs[:: -1 if case.reverse else 1], 1), o)
    assert same(flat([state]), flat([last]))


@pytest.mark.parametrize("case", FIRST, ids=str)
def test_bfloat16(case):
    bfloat16 = pytest.importorskip("ml_dtypes").bfloat16
    operands = case.operands((2,), N, d=20, m=5, dtype=bfloat16)
    check(case, operands, np.random.default_rng(0))


@EACH
def test_threads_and_stages(threads, case):
    """The pieces may be computed by any number of threads, in stages or not."""
    operands = case.operands((2,), N, d=20, m=40, dtype="float32", gates="resets")
    o, last = case.forward(operands, **EXACT)
    for count, chunks in ((1, 0), (2, 0), (2, 3), (3, 64)):
        threads(count)
        with forced(chunks):
            found, end = in_pieces(case, operands, random_cuts(np.random.default_rng(count)))
        assert same(found, o)
        assert same(arrays(end), arrays(last))


@EACH
def test_packed_sequences(case):
    """Their pieces, packed again, have the bits of the whole ones; one sequence is empty."""
    operands = case.operands((2,), N, d=20, m=5, dtype="float32")
    bounds, cuts = [0, 320, 320, 700, N], [128, 0, 64, 384]
    o, last = case.forward(operands, cu_seqlens=bounds, **EXACT)
    ranges = [[], []]
    for (begin, end), cut in zip(pairwise(bounds), cuts, strict=True):
        middle = end - cut if case.reverse else begin + cut
        parts = [range(begin, middle), range(middle, end)]
        for some, part in zip(ranges, reversed(parts) if case.reverse else parts, strict=True):
            some.append(part)
    state = None
    for some in ranges:
        places = np.concatenate(some).astype(int)
        part = {
            name: x.take(places, x.ndim - len(letters)) if letters[0] == "n" else x
            for name, x in operands.items()
            for letters in (case.letters.get(name, case.output),)
        }
        packed = [0, *np.cumsum([len(x) for x in some])]
        found, state = case.forward(part, cu_seqlens=packed, initial_state=state, **EXACT)
        assert same(found, o.take(places, 1))
    assert same(arrays(state), arrays(last))


@each([x for x in CASES if x.row.keys])
def test_key_lengths(case):
    operands = case.operands((3,), N, d=20, m=5, dtype="float32")
    lengths = np.array([N, 0, 777])
    o, last = case.forward(operands, key_lengths=lengths, **EXACT)
    cuts = random_cuts(np.random.default_rng(0))
    found, end = in_pieces(case, operands, cuts, lengths=lengths)
    assert same(found, o)
    assert same(arrays(end), arrays(last))


@pytest.mark.parametrize("normalize", [True, False])
def test_every_map(normalize):
    rng = np.random.default_rng(0)
    case = next(x for x in FIRST if x.name == "causal")
    objects = [RandomFourierFeatures.sample(6, 16, rng=0)]
    if not normalize:
        objects.append(PositiveRandomFeatures.sample(6, 16, rng=0))
    for phi in (*NAMES, *objects):
        options = {"feature_map": phi, "normalize": normalize}
        own = case._replace(options=options)
        check(own, own.operands((2,), N, d=6, m=5, dtype="float32"), rng)


@pytest.mark.parametrize("case", FIRST, ids=str)
def test_the_last_piece(case):
    """It needs no state, and an ordinary one is that of the exact one."""
    operands = case.operands((2,), 200, d=20, m=5, dtype="float32")
    o, last = case.forward(operands, **EXACT)
    _, state = case.forward(case.tokens(operands, 0, 128), **EXACT)
    rest = case.tokens(operands, 128, 200)
    alone = case.call(rest, initial_state=state)
    found, end = case.forward(rest, initial_state=state)
    late = slice(0, 72) if case.reverse else slice(128, 200)
    assert same(alone, o[:, late])
    assert same(found, o[:, late])
    assert same(flat([end]), flat([last]))
    assert type(end) is (np.ndarray if case.row.one_array else case.row.holder)


@each(CARRIED)
def test_what_is_carried_is_needed(case):
    """Without it the same cuts change bits, so the tests above would fail."""
    operands = case.operands((2,), N, d=20, m=5, dtype="float32", gates="weak")
    for name in {"g", "w"} & {*operands}:
        operands[name] = operands[name] * 1e-3
    if "f" in operands:
        operands["f"] = np.abs(operands["f"]) + 9
    cuts = [0, 512, 768, N]
    o, last = case.forward(operands, **EXACT)
    found, end = in_pieces(case, operands, cuts)
    assert same([found, *arrays(end)], [o, *arrays(last)])
    _, end = in_pieces(case, operands, cuts, carry=lambda state: state and State(*state))
    assert not same(flat([end]), flat([last]))


@each(CARRIED)
def test_states(case):
    """An exact state is a `State` too, and pickles keep what it carries."""
    operands = case.operands((2,), 128, d=6, m=5, dtype="float32")
    _, state = case.forward(operands, **EXACT)
    assert isinstance(state, ExactState)
    assert isinstance(state, State)
    assert len(state) == len(State._fields)
    assert State(*state).lost is None
    assert type(state._replace(s=state.s)) is State
    for again in (pickle.loads(pickle.dumps(state)), copy.copy(state), copy.deepcopy(state)):
        assert type(again) is ExactState
        assert same(arrays(again), arrays(state))
    assert "lost=<2 x " in repr(state)
    _, after = case.one_step(operands, 0, state)
    assert same(after, case.one_step(operands, 0, State(*state))[1])
    grads = case.backward(operands, initial_state=state)
    assert same(grads, case.backward(operands, initial_state=State(*state)))


@each(CARRIED)
def test_errors(case):
    operands = case.operands((2,), 64, d=6, m=5, dtype="float32")
    _, state = case.forward(operands, **EXACT)
    name = case.name
    with pytest.raises(ValueError, match=f"{name}: return_state is 'exactly'; expected True, Fals"):
        case.forward(operands, return_state="exactly")
    for lost, error in ((state.lost[..., :-1], ValueError), (state.lost.astype("f8"), TypeError)):
        wrong = ExactState(*state, lost=lost)
        with pytest.raises(error, match=f"{name}: initial_state.lost has"):
            case.forward(operands, initial_state=wrong)
    with pytest.raises(ValueError, match=f"{name}: return_state is 'exact'; .* with state_indices"):
        case.forward(operands, state_at=[3], **EXACT)
    with pytest.raises(ValueError, match=f"{name}: initial_state is an ExactState; expected"):
        case.forward(operands, state_at=[3], initial_state=state)
    for written in ({"in_place": True}, {"state_indices": [1, 0]}):
        with pytest.raises(ValueError, match="state is an ExactState; expected"):
            case.one_step(operands, 0, state, **written)


def test_maps_that_rescale():
    q, k, v = np.random.default_rng(0).standard_normal((3, 64, 6), dtype=np.float32)
    phi = PositiveRandomFeatures.sample(6, 16, rng=0)
    with pytest.raises(ValueError, match=r"causal: return_state is 'exact'; .* map that rescales"):
        linattn.causal(q, k, v, feature_map=phi, return_state="exact")
