"""Dask arrays in blocks against the same call on one array."""

import os
import signal
import sys
import time

import numpy as np
import pytest
from block_cases import BETA, CASES, CAUSAL, LENGTHS, B, C, D, G, H, K, M, N, Q, V, draw
from bounds import close
from slow import first_of_each, slow

import linattn
from linattn import State

da = pytest.importorskip("dask.array", reason="dask is not installed")

import dask  # noqa: E402

import linattn.dask  # noqa: E402


def kind_of(call):
    return call.name, "key_lengths" in call.options


EACH = pytest.mark.parametrize(
    "call", first_of_each(CASES, map(str, CASES), unpack=False, kind=kind_of)
)


def chunked(x):
    """In two by two chunks of heads, and of 7 tokens."""
    chunks = {4: (1, 2, 7, -1), 3: (1, 2, 7)}
    return da.from_array(x, chunks=chunks[x.ndim]) if x.shape[:2] == (B, H) else x


def leaves(x):
    if isinstance(x, tuple):
        return [z for y in x if y is not None for z in leaves(y)]
    return [x]


def same(actual, expected):
    for x, y in zip(leaves(actual), leaves(expected), strict=True):
        assert isinstance(x, da.Array)
        assert x.shape == y.shape and x.dtype == y.dtype
        close(x.compute(scheduler="synchronous"), y, atol=1e-12 * abs(y).max(initial=1e-3))


@EACH
def test_forward(call):
    o = call.run(linattn.dask, chunked)
    assert o.chunks[-1] == (M,) and o.chunks[-2] in ((7, 7, 6), (5,))
    same(o, call.run(linattn))
    if call.state is not None:
        more = {"initial_state": call.state, "return_state": True}
        same(call.run(linattn.dask, chunked, **more), call.run(linattn, **more))


@EACH
def test_backward(call):
    same(call.gradients(linattn.dask, chunked), call.gradients(linattn))
    if call.state is not None:
        more = dict.fromkeys(("initial_state", "grad_state"), call.state)
        same(call.gradients(linattn.dask, chunked, **more), call.gradients(linattn, **more))


@pytest.mark.parametrize("normalize", [True, False])
@pytest.mark.parametrize("shared", [{0}, {1, 2}, {1}, {2}])
def test_shared_heads_over_all_keys(shared, normalize):
    """Grouped queries, and queries that several heads of keys share: gradients are summed."""
    positive = abs(Q), abs(K), V  # no sum of weights near 0
    operands = [x[:, :1] if i in shared else x for i, x in enumerate(positive)]
    lazies = [da.from_array(x, chunks=(1, 2, 7, -1)) for x in operands]
    for lengths in (None, LENGTHS):
        options = {"normalize": normalize, "key_lengths": lengths, "feature_map": "l2norm"}
        same(linattn.dask.noncausal_backward(*lazies, chunked(C), **options),
             linattn.noncausal_backward(*operands, C, **options))  # fmt: skip


@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_dtypes(dtype):
    operands = [x.astype(dtype) for x in (Q, K, V, G, BETA)]
    lazies = [*map(chunked, operands)]
    o, state = linattn.dask.gated_delta(*lazies, feature_map="l2norm", return_state=True)
    expected, end = linattn.gated_delta(*operands, feature_map="l2norm", return_state=True)
    assert o.dtype == dtype and state.s.dtype == np.float32
    step = 2e-3 if dtype == "float16" else 2e-6
    close(o.compute(), expected, atol=step * abs(expected).max())
    close(state.s.compute(), end.s, atol=2e-6 * abs(end.s).max())
    given = *operands[:3], operands[4], C.astype(dtype)
    grads = linattn.dask.delta_backward(*map(chunked, given))
    for x, y in zip(grads, linattn.delta_backward(*given), strict=True):
        assert x.dtype == y.dtype
        close(x.compute(), y, atol=step * abs(y).max())


FACTORS = [0.5, draw(), draw(M), draw(1, M), draw(N, 1), draw(H, 1, 1)]
TURNS = [0.5, 0.5j, draw(), draw(M) * 1j, draw(N, 1), draw(H, 1, 1) * 1j]


@pytest.mark.parametrize(
    ("a", "dtype", "atol"),
    [*((x, *y) for x in FACTORS for y in (("f8", 1e-12), ("f4", 1e-5), ("f2", 2e-2))),
     *((x, *y) for x in TURNS for y in (("c8", 1e-5), ("c16", 1e-12)))],
)  # fmt: skip
def test_factors_shared_by_tokens_and_channels(a, dtype, atol):
    """Of a scan of blocks, as all axes broadcast; the gradient of a real operand is real.

    Python's numbers determine no dtype.
    """
    x, grad = ((y + 1j * y[::-1] if dtype[0] == "c" else y).astype(dtype) for y in (V, C))
    if isinstance(a, np.ndarray):
        a = a / 4 if dtype[0] == "c" else abs(a / 4).clip(0, 0.9)
        a = a.astype(dtype if np.iscomplexobj(a) else x.real.dtype)
    o = linattn.dask.linear_scan(a, chunked(x))
    assert o.dtype == x.dtype and o.chunks[2] == (7, 7, 6)
    close(o.compute(), linattn.linear_scan(a, x), atol=atol)
    back = linattn.linear_scan_backward
    for y, z in zip(back(a, chunked(x), grad), back(a, x, grad), strict=True):
        assert y.dtype == z.dtype and y.shape == z.shape
        close(y.compute(), z, atol=atol * max(abs(z).max(), 1))


def test_scans_in_one_chunk():
    """In reverse, and of packed sequences; and errors of scans."""
    a, x = 0.5, da.from_array(V, chunks=(1, 2, -1, -1))
    for options in {"reverse": True}, {"cu_seqlens": [0, 8, 8, N], "return_state": True}:
        same(linattn.linear_scan(a, x, **options), linattn.linear_scan(a, V, **options))
    with pytest.raises(
        ValueError, match="linear_scan: return_state is 'exact'; expected True or F"
    ):
        linattn.linear_scan(a, chunked(V), return_state="exact")
    for values in map(chunked, (V, V * 1j)):
        with pytest.raises(TypeError, match="linear_scan: reverse is 1; expected"):
            linattn.linear_scan(a, values, reverse=1)
        with pytest.raises(ValueError, match="linear_scan: a has shape"):
            linattn.linear_scan(np.ones(3), values)


def test_the_package_comes_here_by_itself():
    """linattn.causal of dask arrays, lengths and maps that are objects; nothing is computed."""

    def never(block):
        if block.size:
            raise AssertionError("computed while the graph was built")
        return block

    q, k, v = (chunked(x).map_blocks(never, dtype=x.dtype) for x in (Q, K, V))
    phi = linattn.feature_maps.RandomFourierFeatures.sample(D, 6, rng=0)
    o = linattn.causal(q, k, v, key_lengths=LENGTHS, feature_map=phi, normalize=False)
    assert isinstance(o, da.Array) and o.chunks == (*q.chunks[:3], (M,))
    linattn.causal_backward(q, k, v, chunked(C), key_lengths=LENGTHS)
    linattn.noncausal(q, k, v)
    o = linattn.causal(chunked(Q), K, V, key_lengths=da.from_array(LENGTHS, chunks=1))
    same(o, linattn.causal(Q, K, V, key_lengths=LENGTHS))


def test_packed_sequences():
    """In one chunk of tokens, whose sequences have a state each."""
    operands = [da.from_array(x, chunks=(1, 2, -1, -1)) for x in (Q, K, V)]
    more = {"cu_seqlens": [0, 8, 8, N], "return_state": True}
    same(linattn.causal(*operands, **more), linattn.causal(Q, K, V, **more))
    for wrong, what in [([0, 8], "ends with 8"), ([0, 9, 8, N], "decreases"), ([0.0, N], "dtype")]:
        with pytest.raises((TypeError, ValueError), match=f"causal: cu_seqlens .*{what}"):
            linattn.causal(*operands, cu_seqlens=wrong)  # before anything is computed
    with pytest.raises(ValueError, match=r"tokens are in chunks of \(7, 7, 6\); expected one"):
        linattn.causal(*map(chunked, (Q, K, V)), cu_seqlens=[0, 8, N])


def test_steps():
    """One token is not cut."""
    q, beta = da.ones((3, D), chunks=1), da.ones(3, chunks=1)
    state = linattn.State(np.zeros((3, D, D)), np.zeros((3, D)))
    with pytest.raises(TypeError, match="step: an operand is a dask array; expected NumPy"):
        linattn.step(q, q, q, state)
    with pytest.raises(TypeError, match="delta_step: an operand is a dask array"):
        linattn.delta_step(q, q, q, beta, linattn.State(state.s))
    for call in (
        lambda: linattn.mlstm_step(q, q, q, beta, beta, state),
        lambda: linattn.wkv_step(q, q, q[0], q[0], state),
        lambda: linattn.linear_scan_step(1j, q, linattn.State(np.zeros((3, D)))),
    ):
        with pytest.raises(TypeError, match="_step: an operand is a dask array"):
            call()


@pytest.mark.parametrize("scheduler", [*slow("threads"), "processes"])
def test_schedulers(scheduler):
    o = linattn.dask.delta(*map(chunked, (Q, K, V, BETA)), feature_map="l2norm")
    expected = linattn.delta(Q, K, V, BETA, feature_map="l2norm")
    close(o.compute(scheduler=scheduler), expected, atol=1e-12 * abs(expected).max())


def test_depth_of_the_scan():
    """Logarithmic: a chain of 64 blocks would be 64 steps long."""
    x = da.zeros((6400, 2), chunks=(100, 2))
    graph = dict(linattn.dask.causal(x, x, x).__dask_graph__())
    parents = dask.core.get_dependencies
    depth = {}

    def deep(key):
        if key not in depth:
            depth[key] = 1 + max(map(deep, parents(graph, key)), default=0)
        return depth[key]

    assert max(map(deep, graph)) < 30


@pytest.mark.filterwarnings("error::dask.array.PerformanceWarning")
def test_a_task_sees_its_own_block_alone():
    """And states: so a worker's memory is that of its blocks, however long the sequence."""
    q, k, v, c = (da.from_array(x, chunks=(1, 1, 2, -1), name=name)
                  for x, name in zip((Q, K, V, C), "qkvc", strict=True))  # fmt: skip
    beta = da.from_array(BETA, chunks=(1, 1, 2), name="beta")
    for arrays in (linattn.causal_backward(q, k, v, c), [linattn.delta(q, k, v, beta)],
                   [linattn.noncausal(q, k, v)]):  # fmt: skip
        for x in arrays:
            graph = dict(x.__dask_graph__())
            for key in graph:
                needs = [y for y in dask.core.get_dependencies(graph, key)
                         if y[0] in ("q", "k", "v", "c", "beta")]  # fmt: skip
                assert len({y[1:4] for y in needs}) <= 1


@pytest.mark.slow
def test_more_blocks_than_a_task_puts_together():
    """Groups of groups of blocks, forwards and backwards."""
    operands = [draw(600, x, seed=x) for x in (D, D, M)] + [-abs(draw(600)), np.full(600, 0.5)]
    lazies = [da.from_array(x, chunks=(2, *x.shape[1:])) for x in operands]
    lots = {"causal": slice(3), "gated_delta": slice(5), "linear_scan": slice(4, 1, -2)}
    for name, places in lots.items():
        options = {"feature_map": "l2norm"} if name == "gated_delta" else {}
        given, wholes = lazies[places], operands[places]
        if name == "linear_scan":  # a number a token
            given, wholes = ([x[0][:, None], x[1]] for x in (given, wholes))
        same(getattr(linattn, name)(*given, **options),
             getattr(linattn, name)(*wholes, **options))  # fmt: skip
        back = getattr(linattn, f"{name}_backward")
        grad = draw(600, M, seed=9)
        same(back(*given, da.from_array(grad, chunks=(2, M)), **options),
             back(*wholes, grad, **options))  # fmt: skip


def test_the_same_call_has_the_same_keys():
    """A worker's results are found again; another call's are not taken for them."""
    q, k, v = map(chunked, (Q, K, V))
    o = linattn.causal(q, k, v, return_state=True)
    again = linattn.causal(q, k, v, return_state=True)
    assert o[0].name == again[0].name and o[1].s.name == again[1].s.name
    others = [
        linattn.causal(q, k, v, eps=0.1), linattn.causal(k, q, v),
        linattn.causal(q, k, v, key_lengths=LENGTHS), linattn.causal(q, k, v, normalize=False),
        linattn.causal(q, k, v, initial_state=CAUSAL.state), linattn.causal(q, k, v),
    ]  # fmt: skip
    assert len({x.name for x in (o[0], *others)}) == len(others)


def test_wrong_input():
    q, k, v = map(chunked, (Q, K, V))
    with pytest.raises(ValueError, match=r"expected one chunk along its width"):
        linattn.dask.causal(q.rechunk({3: 2}), k, v)
    with pytest.raises(ValueError, match=r"causal: k has shape \(2, 3, 19, 4\)"):
        linattn.dask.causal(q, k[:, :, 1:], v)
    with pytest.raises(TypeError, match="out is given"):
        linattn.causal(q, k, v, out=np.empty(V.shape))
    with pytest.raises(TypeError, match="unexpected keyword argument 'out'"):
        linattn.dask.causal(q, k, v, out=np.empty(V.shape))
    with pytest.raises(TypeError, match="causal_backward: grad_out is None; expected an array"):
        linattn.dask.causal_backward(q, k, v, None)
    arrays = Q[0, 0], K[0, 0], V[0, 0], C[0, 0]
    lists = [x.tolist() for x in arrays]
    same(linattn.dask.causal_backward(*lists), linattn.causal_backward(*arrays))
    with pytest.raises(ValueError, match="one number per value channel"):
        linattn.dask.delta(q, k, v, chunked(draw(B, H, N, M))).compute()
    phi = linattn.feature_maps.PositiveRandomFeatures.sample(D, 6, rng=0)
    for call in (linattn.dask.causal, linattn.dask.noncausal):
        with pytest.raises(ValueError, match="its states carry a scale of their own"):
            call(q, k, v, feature_map=phi)
    gate = q[..., 0]
    for wrong in (State(V), State(V, None, V)):
        with pytest.raises((TypeError, ValueError), match=r"mlstm: initial_state\."):
            linattn.mlstm(q, k, v, gate, gate, initial_state=wrong)
    with pytest.raises(TypeError, match="mlstm: eps is 'a'"):
        linattn.mlstm(q, k, v, gate, gate, eps="a")
    with pytest.raises(ValueError, match=r"initial_state\.s has shape"):
        linattn.dask.causal(q, k, v, initial_state=State(np.zeros((3, 3)), np.zeros(3)))


@pytest.mark.parametrize(
    ("name", "call"),
    [
        ("causal: q", lambda x, y: linattn.causal(y, x, x)),
        ("noncausal: v", lambda x, y: linattn.noncausal(x, x, y)),
        ("gated: g", lambda x, y: linattn.dask.gated(x, x, x, y[:, 0])),
        ("causal_backward: grad_out", lambda x, y: linattn.causal_backward(x, x, x, y)),
        ("causal: key_lengths", lambda x, y: linattn.causal(x, x, x, key_lengths=y[:, 0])),
        ("causal: initial_state.z",
         lambda x, y: linattn.causal(x, x, x, initial_state=State(x[:2], y[:, 0]))),
        ("softmax_attention: k", lambda x, y: linattn.softmax_attention(x[:3], y, y)),
    ],
)  # fmt: skip
def test_unknown_chunk_sizes(name, call):
    x = da.ones((6, 2), chunks=(3, 2))
    with pytest.raises(ValueError, match=f"{name} has shape .*nan.*compute_chunk_sizes"):
        call(x, x[x[:, 0] > 0])


# --- functions that are no recurrences: gufuncs, block by block of the leading axes ---------------

GUFUNCS = {
    "softmax_attention": lambda x: linattn.softmax_attention(x, x, x),
    "softmax_attention_backward": lambda x: linattn.softmax_attention_backward(x, x, x, x),
    "causal_conv1d": lambda x: linattn.causal_conv1d(x, np.ones((D, 3))),
    "causal_conv1d_backward": lambda x: linattn.causal_conv1d_backward(x, np.ones((D, 3)), x)[0],
}


@pytest.mark.parametrize("f", GUFUNCS.values(), ids=GUFUNCS)
@pytest.mark.parametrize("blocks", [(0, 0, 0), (0, 0), (0,), (0, 2), (1, 0, 1)], ids=str)
def test_empty_blocks_of_gufuncs(f, blocks):
    x = draw(sum(blocks), H, N, D)
    same(f(da.from_array(x, chunks=(blocks, 2, -1, -1))), f(x))


@pytest.mark.parametrize(("name", "f"), GUFUNCS.items(), ids=GUFUNCS)
def test_wrong_chunks_of_gufuncs(name, f):
    x = chunked(Q)
    says = rf"{name}: [qx] is in chunks of \(7, 7, 6\) along axis -2; expected one chunk: [qx]\.rec"
    with pytest.raises(ValueError, match=says):
        f(x)
    whole = x.rechunk({-2: -1})
    with pytest.raises(ValueError, match=rf"{name}: .* along axis -1; .*\.rechunk\(\{{-1: -1\}}\)"):
        f(whole.rechunk({-1: 2}))
    same(f(whole), f(Q))


def test_slstm_is_refused():
    """Its gates are an axis of fixed length, which dask's calls of gufuncs do not support."""
    operands = draw(B, N, 4, 1, D), draw(4, 1, D, D), draw(4, 1, D)
    cotangent = draw(B, N, 1, D)
    for i, x in enumerate(operands):
        lazy = *operands[:i], da.from_array(x), *operands[i + 1 :]
        with pytest.raises(TypeError, match=r"^slstm: an operand is a dask array; expected NumPy"):
            linattn.slstm(*lazy)
        with pytest.raises(TypeError, match=r"^slstm_backward: an operand is a dask array; expec"):
            linattn.slstm_backward(*lazy, cotangent)
    with pytest.raises(TypeError, match=r"^slstm_backward: an operand is a dask array; expected"):
        linattn.slstm_backward(*operands, da.from_array(cotangent))


def test_wrong_chunks_of_gradients_and_tokens():
    x = chunked(Q)
    for gradient, more in (
        (linattn.softmax_attention_backward, (Q, Q)),
        (linattn.causal_conv1d_backward, (np.ones((D, 3)),)),
    ):
        with pytest.raises(ValueError, match="grad_out is in chunks of"):
            gradient(Q, *more, x)
    with pytest.raises(TypeError, match="causal_conv1d_step: an operand is a dask array"):
        linattn.causal_conv1d_step(x[:, :, 0], np.ones((D, 3)), np.zeros((B, H, D, 2)))


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="kills a process of the cluster")
def test_a_worker_that_dies():
    """In the middle of a run: another does its work, and no result changes."""
    distributed = pytest.importorskip("distributed")
    operands = [np.tile(x, (1, 1, 200, 1)) for x in (Q, K, V)]
    lazies = [da.from_array(x, chunks=(1, 2, 400, -1)) for x in operands]

    def slow(block):
        time.sleep(0.05)
        return block

    expected = linattn.causal_backward(*operands, np.ones_like(operands[2]))
    options = {"n_workers": 2, "threads_per_worker": 1, "dashboard_address": None}
    with (
        distributed.LocalCluster(**options, processes=True) as cluster,
        distributed.Client(cluster) as client,
    ):
        assert set(client.run(linattn.get_num_threads).values()) == {1}  # the nanny's share
        given = [x.map_blocks(slow, dtype=x.dtype) for x in lazies]
        future = client.compute(linattn.dask.causal_backward(*given, da.ones_like(lazies[2])))
        time.sleep(0.5)
        pids = list(client.run(os.getpid).values())
        os.kill(pids[0], signal.SIGKILL)
        for x, y in zip(client.gather(future), expected, strict=True):
            close(x, y, atol=1e-10 * abs(y).max())
