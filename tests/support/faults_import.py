"""The program that test_faults.py starts with faults.c preloaded to import the extension."""

from __future__ import annotations

import ctypes
import importlib.util
import os
import sys
from importlib.machinery import PathFinder
from types import ModuleType

import numpy as np
from preloaded import find_code, shim

# They use up what Python keeps of such objects: each new one asks for memory.
USED_UP = [[] for _ in range(200)], [float(x) for x in range(300)]


def fail_in_turn(f, most: int = 10000, errors=(MemoryError,)) -> int:
    """Repeat f with the n-th request for memory failing, n = 1, 2, ..., until it succeeds."""
    failures = n = 0
    seen = 1
    while n < min(seen, most):
        n += 1
        shim.faults_arm(n, True)
        try:
            f()
        except errors:
            failures += 1
        finally:
            seen = shim.faults_disarm()
    return failures


def find() -> importlib.machinery.ModuleSpec:
    package = importlib.util.find_spec("linattn")  # which is not imported yet
    spec = PathFinder.find_spec("_linattn", package.submodule_search_locations)
    return importlib.util.spec_from_file_location("linattn._linattn", spec.origin)


def load(spec) -> ModuleType:
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def fails_in_a_child(f, n: int, errors: tuple[type[BaseException], ...]) -> bool:
    """Whether f raises one of these errors in a child process whose n-th request fails."""
    pid = os.fork()
    if pid == 0:
        code = 2
        shim.faults_arm(n, True)
        try:
            f()
            code = 0
        except errors:
            code = 1
        finally:
            shim.faults_disarm()
            os._exit(code)
    code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    assert code in (0, 1), f"exit status {code} where request {n} fails"
    return code == 1


def memory() -> None:
    """Imports, gufuncs and calls that need a new loop raise MemoryError, and later succeed."""
    spec = find()
    ctypes.CDLL(spec.origin)
    find_code()
    # NumPy's tables are looked for in the first import of a process alone; NumPy turns a
    # MemoryError there into an ImportError.
    kinds = MemoryError, ImportError
    assert sum(fails_in_a_child(lambda: load(spec), n, kinds) for n in range(1, 150)) > 100
    loaded: list[ModuleType] = []
    assert fail_in_turn(lambda: loaded.append(load(spec)), errors=kinds) > 100
    assert fail_in_turn(lambda: loaded.append(load(spec))) > 100
    module = loaded[0]
    # A request for each name, and one for the tuple.
    assert fail_in_turn(module.available_isas) > len(module.available_isas())
    assert fail_in_turn(lambda: module.xla_handler(print)) > 0
    long = max(module.ufunc_names, key=len)  # with operands enough for a tuple that is not kept
    for name in ("causal_relu", "_step_elu_sum", long, "sigmoid"):
        # NumPy ends the process where it has no room for a loop's own object.
        assert fail_in_turn(lambda: module.make_ufunc(name), 4) == 4  # noqa: B023
    import linattn

    assert module.ufunc_names == linattn._linattn.ufunc_names
    q = np.arange(12).reshape(4, 3) % 5
    gufunc = module.make_ufunc("causal_relu")
    assert fail_in_turn(lambda: gufunc(q, q, q, 1, 1e-6)) > 5  # what loop it takes is found first
    expected = linattn.causal(*3 * [q.astype(float)], feature_map="relu")
    assert np.array_equal(gufunc(q, q, q, 1, 1e-6), expected)
    print("whole")


def xla() -> None:
    """Make every request of the extension fail in turn in a call by XLA: each raises an error."""
    import jax

    import linattn.jax

    find_code()
    # Scratch of its own: that of narrower calls is on the stack, that of wider ones is kept.
    q = np.random.default_rng(0).standard_normal((3, 9, 96)).astype("f4")
    call = jax.jit(linattn.jax.noncausal)
    lengths = np.array([4, 0, 9], np.int32)
    expected = np.asarray(call(q, q, q, key_lengths=lengths))
    failures = 0
    while True:
        shim.faults_arm(failures + 1, False)
        try:
            o = np.asarray(call(q, q, q, key_lengths=lengths))
        except (ValueError, jax.errors.JaxRuntimeError) as error:
            assert "RESOURCE_EXHAUSTED: linattn: out of memory" in str(error), error
            failures += 1
        else:
            break
        finally:
            shim.faults_disarm()
    assert np.array_equal(o, expected)
    assert failures > 1
    print("whole")


def cpus(count: str) -> None:
    """Print the number of threads of an import on a system that reports so many CPUs."""
    spec = find()
    ctypes.CDLL(spec.origin)
    find_code()
    shim.faults_cpus(int(count))
    print(load(spec).get_num_threads())  # the package's own would know of quotas, too
    import linattn

    q = np.random.default_rng(0).standard_normal((4, 3000, 32)).astype("f4")
    linattn.set_num_threads(4)
    o = linattn.causal(q, q, q)
    linattn.set_num_threads(1)
    assert np.array_equal(o, linattn.causal(q, q, q))


if __name__ == "__main__":
    globals()[sys.argv[1]](*sys.argv[2:])
