"""Initial and final states: a sequence cut anywhere continues, forward and backward."""

import copy
import itertools
import pickle

import numpy as np
import pytest
from bounds import close
from cases import MAPS, SIGNED, VARIANTS
from states import assert_same, bound, check, compare, flat, oracle, state, tokens

import linattn
from linattn import FusedState, State
from linattn._core import settings
from linattn.reference import linear as ref

SIZES = [(1, 1, 1), (3, 4, 16), (17, 5, 33), (40, 16, 64), (67, 65, 20), (34, 20, 100)]


def case(n, d, m, lead=(), dtype="float32", feature_map="elu", normalize=True, grad=False, seed=0):
    """Operands and options of a call with an initial state (and a final gradient)."""
    positive = feature_map in SIGNED and normalize
    operands = tokens((*lead, n, d, m), dtype=dtype, positive=positive, cotangent=grad, seed=seed)
    options = {"feature_map": feature_map, "normalize": normalize, "scale": 0.4, "eps": 0.01}
    core = (*lead, d, m)
    options["initial_state"] = state(core, dtype=dtype, normalize=normalize, seed=seed)
    if grad:
        options["grad_state"] = state(core, dtype=dtype, normalize=normalize, seed=seed + 1)
    else:
        options["return_state"] = True
    return operands, options


@pytest.mark.parametrize("name", ["causal", "causal_backward"])
@pytest.mark.parametrize(("feature_map", "normalize", "dtype"), VARIANTS)
def test_against_the_twin(name, feature_map, normalize, dtype):
    for n, d, m in SIZES:
        operands, options = case(n, d, m, (), dtype, feature_map, normalize, grad=name != "causal")
        for x in check(name, operands, **options):
            assert x.dtype == dtype


@pytest.mark.parametrize("name", ["causal", "causal_backward"])
def test_heads(name):
    for lead in [(1,), (3,), (2, 3), (1, 2, 1, 2), (40,)]:
        operands, options = case(21, 6, 19, lead, grad=name != "causal")
        check(name, operands, **options)


def forwards(operands, options, cuts):
    """The arrays of `causal` on consecutive pieces, each begun with the state of the last."""
    options = dict(options)
    parts = []
    for start, stop in itertools.pairwise(cuts):
        o, end = linattn.causal(*(x[..., start:stop, :] for x in operands), **options)
        options["initial_state"] = end
        parts.append(o)
    return [np.concatenate(parts, -2), *flat(end)]


def backwards(operands, options, cuts):
    """The arrays of `causal_backward`, the gradient of the state handed from piece to piece."""
    options = dict(options)
    grad, first = options.pop("grad_state"), options.pop("initial_state")
    starts = [first]
    for start, stop in itertools.pairwise(cuts[:-1]):
        q, k, v, _ = (x[..., start:stop, :] for x in operands)
        _, end = linattn.causal(q, k, v, **options, initial_state=starts[-1], return_state=True)
        starts.append(end)
    parts = []
    for i in reversed(range(len(starts))):
        piece = (x[..., cuts[i] : cuts[i + 1], :] for x in operands)
        *grads, grad = linattn.causal_backward(
            *piece, **options, initial_state=starts[i], grad_state=grad
        )
        parts.insert(0, grads)
    joined = [np.concatenate(x, -2) for x in zip(*parts, strict=True)]
    return [*joined, *flat(grad)]


@pytest.mark.parametrize("name", ["causal", "causal_backward"])
@pytest.mark.parametrize("feature_map", MAPS)
def test_chain_of_blocks(name, feature_map):
    """Blocks of 1 to 16 tokens, as speculative decoding makes them."""
    pieces = forwards if name == "causal" else backwards
    n = 50
    operands, options = case(n, 24, 40, (3,), feature_map=feature_map, grad=name != "causal")
    expected, allowed = oracle(name, operands, **options), bound(name, operands, **options)
    for size in range(1, 17):
        cuts = [*range(0, n, size), n]
        compare(pieces(operands, options, cuts), expected, allowed, f"blocks of {size}:")


@pytest.mark.parametrize("normalize", [True, False])
def test_gufuncs(normalize):
    """r sequences and their states, as the wrappers call them."""
    suffix = "" if normalize else "_sum"
    numbers = (0.4, 0.01) if normalize else (0.4,)
    for feature_map in MAPS:
        operands, options = case(
            21, 6, 19, (2,), feature_map=feature_map, normalize=normalize, grad=True
        )
        start, last = options["initial_state"], options["grad_state"]
        indices = ([0], [21], [21])
        rows = [tuple(x[:, None] for x in given if x is not None) for given in (start, last)]
        f = getattr(linattn.ufuncs, f"causal_state_{feature_map}{suffix}")
        o, *end = f(*operands[:3], *numbers, *indices, *rows[0])
        del options["grad_state"]
        expected = linattn.causal(*operands[:3], **options, return_state=True)
        assert_same([o, *(x[:, 0] for x in end)], expected)
        f = getattr(linattn.ufuncs, f"causal_state_backward_{feature_map}{suffix}")
        (*grads,) = f(*operands, *numbers, *indices, *rows[0], *rows[1])
        expected = linattn.causal_backward(*operands, **options, grad_state=last)
        assert_same([*grads[:3], *(x[:, 0] for x in grads[3:])], expected)


def test_broadcast_states():
    """A state shared by heads, and its gradient summed over them."""
    lead, d, m = (2, 3), 6, 19
    operands = tokens((*lead, 21, d, m), cotangent=True)
    for own in [(), (1,), (3,), (1, 3), (2, 1), (1, 1), (2, 3)]:
        for z_own in {own, (), (2, 3)}:
            first = State(state((*own, d, m)).s, state((*z_own, d, m)).z)
            dense = State(
                np.broadcast_to(first.s, (*lead, d, m)).copy(),
                np.broadcast_to(first.z, (*lead, d)).copy(),
            )
            assert_same(
                linattn.causal(*operands[:3], initial_state=first, return_state=True),
                linattn.causal(*operands[:3], initial_state=dense, return_state=True),
            )
            *_, grad = linattn.causal_backward(*operands, initial_state=first)
            *_, whole = linattn.causal_backward(*operands, initial_state=dense)
            slack = bound("causal_backward", operands, initial_state=dense)[3:]
            for x, y, given, s, core in zip(grad, whole, first, slack, (2, 1), strict=False):
                assert x.shape == given.shape
                y, s = (ref._sum_to(z.astype("f8"), given, core) for z in (y, s))
                compare([x], [y], [s])


def test_broadcast_operands_with_states():
    """Grouped queries: gradients in the shapes of the operands, states one a query head."""
    leads = [(2, 4, 3), (2, 1, 3), (3,), (2, 4, 3)]
    d, m = 6, 19
    widths = (d, d, m, m)
    operands = [
        tokens((*lead, 21, w, w), seed=i)[0]
        for i, (lead, w) in enumerate(zip(leads, widths, strict=True))
    ]
    dense = [np.broadcast_to(x, (2, 4, 3, *x.shape[-2:])).copy() for x in operands]
    for first in (state((d, m)), state((2, 1, 3, d, m)), state((2, 4, 3, d, m))):
        assert_same(
            linattn.causal(*operands[:3], initial_state=first, return_state=True),
            linattn.causal(*dense[:3], initial_state=first, return_state=True),
        )
        grads = linattn.causal_backward(*operands, initial_state=first)
        assert [x.shape for x in grads[:3]] == [x.shape for x in operands[:3]]
        whole = linattn.causal_backward(*dense, initial_state=first)
        close(grads[1], ref._sum_to(whole[1], operands[1]), rtol=1e-4, atol=1e-5)


def test_gradient_of_a_state_that_was_not_given():
    """Only `grad_state`: the gradient of the zeros that were there, one of each head."""
    for lead in [(), (2, 3)]:
        operands, options = case(21, 6, 19, lead, grad=True)
        del options["initial_state"]
        *_, ds = linattn.causal_backward(*operands, **options)
        assert ds.s.shape == (*lead, 6, 19) and ds.z.shape == (*lead, 6)
        check("causal_backward", operands, **options)


def test_threads_and_instruction_sets(threads, isa):
    for lead, n, d, m in [((), 3000, 32, 64), ((3,), 1001, 32, 48), ((2, 8), 70, 64, 64)]:
        operands, options = case(n, d, m, lead, grad=True)
        first, last = options.pop("initial_state"), options.pop("grad_state")

        def results(operands=operands, options=options, first=first, last=last):
            return [
                linattn.causal(*operands[:3], **options, initial_state=first, return_state=True),
                linattn.causal_backward(*operands, **options, initial_state=first, grad_state=last),
            ]

        threads(1)
        expected = results()
        for count in range(2, 9):
            threads(count)
            assert_same(results(), expected, f"{count} threads")
    for name in settings.available_isas():
        isa(name)
        for normalize in (True, False):
            for grad, f in enumerate(("causal", "causal_backward")):
                for dtype in ("float32", "float64"):
                    operands, options = case(
                        35, 18, 37, (2,), dtype, normalize=normalize, grad=bool(grad)
                    )
                    check(f, operands, **options)


def test_nothing_looks_ahead():
    """Poison at t changes no output before t, nor any gradient that it does not reach."""
    n = 40
    operands, options = case(n, 9, 17, normalize=False, grad=True)
    first, last = options.pop("initial_state"), options.pop("grad_state")
    options["initial_state"] = first
    clean = linattn.causal(*operands[:3], **options)
    grads = linattn.causal_backward(*operands, **options, grad_state=last)
    for t in (0, 1, 15, 16, 17, 31, 32, 39):
        for which in range(4):
            bad = [x.copy() for x in operands]
            bad[which][t] = np.nan
            assert_same(linattn.causal(*bad[:3], **options)[:t], clean[:t])
            if which in (0, 3):
                _, dk, dv, ds = linattn.causal_backward(*bad, **options, grad_state=last)
                assert_same([dk[t + 1 :], dv[t + 1 :]], [x[t + 1 :] for x in grads[1:3]])
                assert np.isnan(ds.s).any()
    nan = State(np.full_like(last.s, np.nan))
    dq, *_ = linattn.causal_backward(*operands, **options, grad_state=nan)
    assert_same(dq, grads[0])  # no query reads what follows it


def test_what_is_printed():
    """Shapes and dtypes, whatever the fields are; the rest is a tuple's."""
    s, z = np.ones((7, 4, 3), np.float32), np.ones((7, 4))
    assert repr(State(s, z)) == "State(s=<7 x 4 x 3 float32>, z=<7 x 4 float64>, log_scale=None)"
    assert str([State(z[0, 0], [1])]) == "[State(s=<float64>, z=[1], log_scale=None)]"
    assert repr(FusedState(None, s)) == "FusedState(conv=None, s=<7 x 4 x 3 float32>)"
    for given in (State(s, z), FusedState(z, s)):
        assert tuple(given) == given and given._replace(s=z).s is z
        for same in (pickle.loads(pickle.dumps(given)), copy.deepcopy(given)):
            assert type(same) is type(given)
            assert_same(same, given)


def test_states_pickled_before_modules_had_rooms():
    for text, same in (
        (b"\x80\x04\x8c\x0elinattn._state\x8c\x05State\x93K\x01NN\x87\x81.", linattn.State(1)),
        (
            b"\x80\x04\x8c\x0elinattn._fused\x8c\nFusedState\x93K\x01K\x02\x86\x81.",
            linattn.FusedState(1, 2),
        ),
    ):
        assert pickle.loads(text) == same
