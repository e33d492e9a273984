"""The program that test_mpi.py runs on several ranks.

It compares every function with the same call on one array, and ends with "all the same".
"""

import re
import sys
from functools import partial

import numpy as np
import pytest
from block_cases import BETA, CASES, CAUSAL, LENGTHS, C, G, K, N, Q, V, draw
from bounds import close
from mpi4py import MPI

import linattn
import linattn.mpi

COMM = MPI.COMM_WORLD
BEGIN, END = (N * (COMM.rank + i) // COMM.size for i in (0, 1))


def mine(x):
    """This rank's tokens."""
    axis = next((i for i, size in enumerate(x.shape) if size == N), None)
    return x if axis is None else np.ascontiguousarray(x.take(range(BEGIN, END), axis))


def compare(actual, expected):
    """Results are this rank's tokens of those of one array; states are whole."""
    for x, y in zip(actual, expected, strict=True):
        if isinstance(y, linattn.State):
            compare([z for z in x if z is not None], [z for z in y if z is not None])
            continue
        close(x, mine(y), atol=1e-12 * max(abs(y).max(initial=0), 1e-3))


def results():
    for call in (x for x in CASES if x.for_ranks):
        compare([call.run(linattn.mpi, mine)], [call.run(linattn)])
        compare(call.gradients(linattn.mpi, mine), call.gradients(linattn))
        if call.state is None:
            continue
        more = {"initial_state": call.state, "return_state": True}
        compare(call.run(linattn.mpi, mine, **more), call.run(linattn, **more))
        more = dict.fromkeys(("initial_state", "grad_state"), call.state)
        compare(call.gradients(linattn.mpi, mine, **more), call.gradients(linattn, **more))


def grouped_queries():
    """Heads share keys and the state before them, which is a pair; gradients are summed."""
    operands, state = (Q, K[:, :1], V[:, :1]), CAUSAL.state
    shared = state.s[0, 0], state.z[0, 0]
    for more in [{}, {"initial_state": shared}, {"grad_state": tuple(state[:2])},
                 {"initial_state": shared, "grad_state": state}]:  # fmt: skip
        compare(linattn.mpi.causal_backward(*map(mine, (*operands, C)), **more),
                linattn.causal_backward(*operands, C, **more))  # fmt: skip


def mixed_dtypes():
    """Results have the dtypes of the same call on one array, whichever operand has 16 bits."""
    q, k, v, c = Q.astype(np.float16), *(x.astype(np.float32) for x in (K, V, C))
    for name in ("causal", "noncausal"):
        back = f"{name}_backward"
        found = getattr(linattn.mpi, name)(*map(mine, (q, k, v)))
        assert found.dtype == np.float32, (name, found.dtype)
        grads = getattr(linattn.mpi, back)(*map(mine, (q, k, v, c)))
        expected = getattr(linattn, back)(q, k, v, c)
        assert [x.dtype for x in grads] == [x.dtype for x in expected], name


def errors():
    """An error on one rank is raised on all."""
    q, k, v = map(mine, (Q, K, V))
    phi = linattn.feature_maps.PositiveRandomFeatures.sample(q.shape[-1], 6, rng=0)
    for call in (linattn.mpi.causal, linattn.mpi.noncausal):
        with pytest.raises(ValueError, match="carry a scale of their own"):
            call(q, k, v, feature_map=phi)
    masked = np.ma.masked_array(k, k > 0)
    for call in (linattn.mpi.causal, linattn.mpi.noncausal):
        for error, what, options in [
            (TypeError, "masked", {"k": masked}),
            (ValueError, "feature_map is 'zz'", {"feature_map": "zz"}),
            (TypeError, "eps is 'a'", {"eps": "a"}),
            (ValueError, "scale is inf", {"scale": np.inf}),
            (TypeError, "normalize is 3", {"normalize": 3}),
        ]:
            with pytest.raises(error, match=what):
                call(**{"q": q, "k": k, "v": v} | options)
    wrong = k[..., 1:] if COMM.rank == 1 else k
    with pytest.raises(ValueError if COMM.rank == 1 else RuntimeError, match="k has shape"):
        linattn.mpi.causal(q, wrong, v)
    narrow = [x[:1] if COMM.rank == 1 else x for x in (q, k, v)]
    beta = np.ones(q.shape[:-1])
    odd = COMM.rank == 1
    lengths, start = (x if odd else None for x in (LENGTHS, CAUSAL.state))
    causal, delta = (getattr(linattn.mpi, x) for x in ("causal", "delta"))
    for call, what in [
        (lambda: causal(*narrow), "the leading axes is (2, 3)"),
        (lambda: linattn.mpi.noncausal(*narrow), "the leading axes is (2, 3)"),
        (lambda: causal(q, k, v, scale=1.0 + odd), "scale is 1.0"),
        (lambda: causal(q, k, v, return_state=odd), "return_state is False"),
        (lambda: causal(q, k, v, key_lengths=lengths), "key_lengths is None"),
        (lambda: causal(q, k, v, initial_state=start), "an initial_state is False"),
        (lambda: delta(q, k, v, beta) if odd else causal(q, k, v), "the function is causal"),
    ]:
        with pytest.raises(ValueError, match="expected the same on all ranks") as error:
            call()
        assert COMM.rank > 0 or f"{what} here and " in str(error.value)


def refused(call, what):
    """The call raises on every rank, whichever rank has the error."""
    with pytest.raises((TypeError, ValueError, RuntimeError), match=re.escape(what)):
        call()


def wrong_states():
    """Wrong states on all ranks, and on each rank alone."""
    local = tuple(map(mine, (Q, K, V)))
    right = CAUSAL.state
    s, z, _ = right
    for wrong, what in [
        (linattn.State(s), "z is None"),
        (linattn.State(s[..., 1:], z), "s has shape (2, 3, 4, 4)"),
        (linattn.State(s[:, :2], z), "s has shape (2, 2, 4, 5)"),
        (linattn.State(s.astype("float32"), z), "s has dtype float32"),
        (s, "is a ndarray"),
    ]:
        for where in (None, *range(COMM.size)):
            state = wrong if where in (None, COMM.rank) else right
            refused(partial(linattn.mpi.causal, *local, initial_state=state), what)
            for field in ("initial_state", "grad_state"):
                given = {"initial_state": right, field: state}
                refused(partial(linattn.mpi.causal_backward, *local, mine(C), **given), what)


def unlike_states():
    """Differences between the ranks' states, or gradients of them, raise before any computation."""
    local, right = tuple(map(mine, (Q, K, V))), CAUSAL.state
    other = linattn.State(right.s, right.z + (COMM.rank == 1))
    back = partial(linattn.mpi.causal_backward, *local, mine(C))
    for call, what in [
        (partial(linattn.mpi.causal, *local, initial_state=other), "initial_state"),
        (partial(back, initial_state=other), "initial_state"),
        (partial(back, grad_state=other), "grad_state"),
    ]:
        refused(call, f"the checksum of {what} is")
    copied = linattn.State(np.asfortranarray(right.s), right.z.copy())  # the same numbers
    linattn.mpi.causal(*local, initial_state=copied if COMM.rank == 1 else right)


def unlike_operands():
    """Operands that are valid on each rank but differ between ranks in more than tokens raise."""
    q, k, v, g, beta, c = map(mine, (Q, K, V, G, BETA, C))
    gates, erase, bonus = -abs(k), k, draw(k.shape[-1])
    odd = COMM.rank == 1
    gated, gated_back, gated_delta, noncausal_back, causal_back = (
        getattr(linattn.mpi, x)
        for x in ("gated", "gated_backward", "gated_delta", "noncausal_backward", "causal_backward")
    )
    bonus, erase = (x if odd else None for x in (bonus, erase))
    shared = (x[:, :1] if odd else x for x in (k, v))
    for call, what in [
        (partial(gated, q, k, v, gates, bonus=bonus), "the shape of bonus is "),
        (partial(gated_back, q, k, v, gates, c, bonus=bonus), "the shape of bonus is "),
        (partial(gated_delta, q, k, v, g, beta, erase=erase), "the shape of erase is "),
        (partial(gated, q, k, v, gates if odd else g), "the shape of g is "),
        (partial(linattn.mpi.delta, q, k, v, v if odd else beta), "the shape of beta is "),
        (partial(linattn.mpi.causal, q, *shared), "the shape of k is "),
        (partial(causal_back, q, k, v, c[0] if odd else c), "the shape of grad_out is "),
        (partial(noncausal_back, q, k, v, c[0] if odd else c), "the shape of grad_out is "),
        (partial(linattn.mpi.noncausal, q, *(x if odd else x.astype("f4") for x in (k, v))),
         "dtype is "),
    ]:  # fmt: skip
        refused(call, what)


def scans():
    """Factors that tokens share are refused."""
    scan, x = linattn.mpi.linear_scan, mine(V)
    ones = np.ones(x.shape[-1])
    for a in 0.5, ones, ones[None]:
        refused(partial(scan, a, x), f"a has shape {np.shape(a)}; expected {x.shape[-2]} tokens")
    refused(partial(scan, x, x, reverse=COMM.rank == 1), "reverse is ")
    refused(partial(scan, x, x, log=1 if COMM.rank == 1 else False), "log is 1; expected")
    refused(partial(scan, x, x, log=COMM.rank == 1), "log is ")
    one = np.broadcast_to(0.5, x.shape)
    compare([scan(one, x)], [linattn.linear_scan(0.5, V)])


def wrong_lengths():
    """Lengths and their limit are those of the whole sequence; all ranks see an error of one."""
    local = tuple(map(mine, (Q, K, V)))
    for wrong, what in [
        (-1, "key_lengths has values from -1 to -1; expected 0 to 20"),
        (N + 1, "key_lengths has values from 21 to 21; expected 0 to 20"),
        (True, "key_lengths has dtype bool"),
        (2.0, "key_lengths has dtype float64"),
        ("all", "key_lengths has dtype <U3"),
        ([3, 4], "key_lengths has shape (2,)"),
        ([[3], [4, 5]], "inhomogeneous"),
        (np.ma.masked_array([3]), "key_lengths is a masked array"),
    ]:
        for name in ("causal", "noncausal", "causal_backward", "noncausal_backward"):
            grad = (mine(C),) if name.endswith("backward") else ()
            call = partial(getattr(linattn.mpi, name), *local, *grad)
            refused(partial(call, key_lengths=wrong), what)
    for other in (2.0, lambda: 2):  # equal but no integer, and what cannot be sent
        lengths = other if COMM.rank == 1 else 2
        refused(partial(linattn.mpi.causal, *local, key_lengths=lengths), "")


results()
grouped_queries()
mixed_dtypes()
if COMM.size > 1:
    errors()
    wrong_states()
    unlike_states()
    unlike_operands()
    scans()
    wrong_lengths()
COMM.Barrier()
if COMM.rank == 0:
    print("all the same")
    sys.stdout.flush()
