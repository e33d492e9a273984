"""``linattn bench``, and what the commands measure: pairs of times, memory."""

import contextlib
import dataclasses
from functools import partial

from processes import output

import linattn
from linattn.__main__ import main
from linattn._cli import bench, memory_use, peers
from linattn._cli.rows import Measured, check, interleave


def test_bench(capsys, monkeypatch):
    """A line for each row; what is not installed is skipped with one."""
    monkeypatch.setattr(bench, "HEADS8", (2, 128, 16))
    rows = [dataclasses.replace(row, sizes=(2, 128, 16)) for row in bench.ROWS]
    rows.append(dataclasses.replace(rows[0], name="of nobody", peers=[Nobody]))
    monkeypatch.setattr(bench, "ROWS", rows)
    monkeypatch.setattr(
        bench, "measure", lambda name, calls, *_: Measured(TWICE, check(name, calls))
    )
    assert main(["bench"]) == 0
    printed = capsys.readouterr()
    assert printed.err == "" and printed.out.count(" 2.00x ") == len(rows) - 1
    assert "of nobody" in printed.out and "skipped: nothing_of_this_name" in printed.out
    assert str(linattn.get_num_threads()) in printed.out.splitlines()[0]


class Nobody(peers.Peer):
    name, packages = "nobody", ("nothing_of_this_name",)


TWICE = [(2e-3, 1e-3)] * 3


def test_bench_checks_results_first(capsys, monkeypatch):
    monkeypatch.setattr(peers, "EPS", 1.0)
    monkeypatch.setattr(bench, "ROWS", bench.ROWS[2:3])
    monkeypatch.setattr(bench, "limit_threads", lambda count: contextlib.nullcontext())
    assert main(["bench"]) == 1
    assert (
        "error: NumPy, chunked / causal, forward: these results differ" in capsys.readouterr().err
    )


def test_pairs():
    """Counts of calls, and the figures of pairs."""
    calls = []
    times = interleave(partial(calls.append, 0), partial(calls.append, 1), 0.0)
    assert len(times) == 3 and {*calls} == {0, 1}
    found = Measured([(1.0, 2.0), (3.0, 2.0), (2.0, 2.0)])
    assert found.spread() == (1.0, 0.5, 1.5)
    assert found.detail == "2 against 2 s"


def test_available_memory():
    assert memory_use.available() is None or memory_use.available() > 2**20


def test_peak_memory():
    """A call's own pages are counted, whether it keeps them or not."""
    # In a process of its own, as the command has: the system takes idle pages from one that ran
    # thousands of tests, while the call runs.
    program = """if True:
        import numpy as np
        from linattn._cli import memory_use
        print(*memory_use.peak(lambda: int(np.ones(2**22).sum())))
    """
    result, size = output("-c", program).split()
    assert int(result) == 2**22
    assert size == "None" or 0.9 * 2**25 < int(size) < 2 * 2**25
