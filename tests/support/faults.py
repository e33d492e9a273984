"""The program that test_faults.py starts with faults.c preloaded."""

from __future__ import annotations

import os
import sys

import numpy as np
from every_call import Call, every_call
from preloaded import find_code, shim
from stages import forced
from states import flat

import linattn
from linattn import _linattn


def same(results, expected) -> bool:
    pairs = zip(results, expected, strict=True)
    return all(x.tobytes() == y.tobytes() for x, y in pairs)


def fail_in_turn(call: Call, python: bool) -> int:
    """Make each allocation of the call fail in turn; return the number of failures."""
    before = [x.copy() for x in call.written]

    def restore():
        for x, y in zip(call.written, before, strict=True):
            x[...] = y

    expected = call.results()
    after = [x.copy() for x in call.written]
    n = failures = 0
    while True:
        n += 1
        restore()
        results, error, held = None, None, shim.faults_held()
        shim.faults_arm(n, python)
        try:
            results = call.run()
        except MemoryError as caught:
            error = caught
        finally:
            seen = shim.faults_disarm()
        if error is None:
            assert same(flat(results), expected), f"{call.name}: other numbers, allocation {n}"
        else:
            failures += 1
            # Where Python has no room for the results' tuple they are all there.
            whole = same(call.written, before) or (python and same(call.written, after))
            assert whole, f"{call.name}: half written, allocation {n}"
        del results, error
        assert shim.faults_held() == held, f"{call.name}: allocation {n} leaves memory behind"
        if seen < n:
            restore()
            return failures


def large_calls():
    """Calls whose work is split in every way: stages, passes, heads left over, gaps, copies."""
    rng = np.random.default_rng(0)
    q, v, g = (rng.standard_normal((4096, x)).astype("f4") for x in (48, 64, 64))
    out = np.ones_like(v)
    for options in ({}, {"cu_seqlens": [0, 100, 4096]}):
        yield Call("causal", linattn.causal, (q, q, v), options | {"out": out}, (out,))
        yield Call("causal_backward", linattn.causal_backward, (q, q, v, g), options)
    grads = np.ones_like(q), np.ones_like(q), np.ones_like(v)
    gufunc = linattn.ufuncs.causal_backward_elu
    yield Call("passes", gufunc, (q, q, v, g, 1.0, 1e-6), {"out": grads}, grads)
    one, state = np.array([7], np.intp), rng.standard_normal((1, 48, 64)).astype("f4")
    yield too_many_chunks(rng)
    gaps = q, q, v, 1.0, one, one + 50, one + 90, state
    gufunc = linattn.ufuncs.causal_state_elu_sum
    yield Call("gaps", gufunc, gaps, {"out": (out, None)}, (out,))
    unordered = np.array([2000, 0], np.intp), np.array([4096, 2000], np.intp)
    gaps = q, q, v, 1.0, *unordered, unordered[1], np.repeat(state, 2, 0)
    yield Call("unordered", gufunc, gaps, {"out": (out, None)}, (out,))
    apart = np.lib.stride_tricks.as_strided(np.ones(2**19, "f4"), v.shape, (8, 4 * 4097))
    yield Call("out whose rows cross", linattn.causal, (q, q, v), {"out": apart}, (apart,))
    memory = np.ones((4096, 64), "f4")
    yield Call("out is q", linattn.causal, (memory, np.ones_like(v), v), {"out": memory}, (memory,))
    heads = np.ones((600, 9, 64), "f4").swapaxes(0, 1)  # two for each thread, in slices, and one
    out = np.ones((600, 9, 64), "f4").swapaxes(0, 1)
    yield Call("left over", linattn.causal, (heads, heads, heads), {"out": out}, (out,))
    byte_swapped = v.astype(v.dtype.newbyteorder())
    yield Call("cast", linattn.causal, (q, q, byte_swapped))


def too_many_chunks(rng):
    """A gradient in stages that have no room for its chunks: each token is reset."""
    q, k, v, grad_out = rng.standard_normal((4, 600, 32)).astype("f4")
    g, beta = np.full(600, -1000, "f4"), np.ones(600, "f4")
    out = tuple(np.ones_like(x) for x in (q, k, v, g, beta))
    gufunc = linattn.ufuncs.gated_delta_backward_identity

    def run(*operands, **options):
        with forced(8):
            return gufunc(*operands, **options)

    operands = q, k, v, g, beta, grad_out, 1.0
    return Call("too many chunks", run, operands, {"out": out}, out)


def overrun() -> None:
    """A write past the end of poisoned scratch raises an error; correct calls raise none."""
    _linattn.poison_scratch(0xFF)
    for call in large_calls():
        call.run()
        error = None
        shim.faults_overrun(True)
        try:
            call.run()
        except SystemError as caught:
            error = str(caught)
        finally:
            shim.faults_overrun(False)
        assert error == "linattn: a kernel needs more scratch than it was given", call.name
    print("told")


def main(what: str, *arguments: str) -> None:
    find_code()
    if what == "overrun":
        overrun()
        return
    if what == "threads":
        shim.faults_threads(int(arguments[0]))
        linattn.set_num_threads(1)
        expected = [call.results() for call in large_calls()]
        linattn.set_num_threads(4)
        for call, right in zip(large_calls(), expected, strict=True):
            assert same(call.results(), right), call.name
        print("right", len(os.listdir("/proc/self/task")) - 1)
        return
    linattn.set_num_threads(4)
    failures = sum(fail_in_turn(call, what == "python") for call in (*every_call(), *large_calls()))
    print(failures)


if __name__ == "__main__":
    main(*sys.argv[1:])
