"""python -m linattn: what it prints, the files it writes, and its exit status."""

import importlib.util
import json
import os
import re
import signal
import subprocess
import sys
import time

import numpy as np
import pytest
from every_call import every_call
from processes import python
from slow import slow

import linattn
from linattn.__main__ import main
from linattn._cli import memory_use, peers, selftest, timing
from linattn._cli.progress import Bar
from linattn._core import settings


@pytest.fixture(autouse=True)
def short_heads(monkeypatch):
    """The table of heads in little time."""
    monkeypatch.setattr(timing, "HEADS", (8, 2 * peers.CHUNK, 64))


SMALL = ["timing", "-n", "50", "70", "-d", "8", "--repeat", "2"]


@pytest.fixture
def timed(capsys):
    """Run ``linattn timing`` on little: the lines that it prints, and its errors."""

    def run(*more, status=0):
        assert main([*SMALL, *more]) == status
        printed = capsys.readouterr()
        return printed.out, printed.err

    return run


def command(*arguments, **environment):
    """``python -m linattn`` in a process of its own: its status, output and errors."""
    done = python("-m", "linattn", *arguments, **environment)
    return done.returncode, done.stdout, done.stderr


def test_info(capsys):
    assert main(["info"]) == 0
    out = capsys.readouterr().out
    assert linattn.__version__ in out
    assert linattn.get_isa() in out
    for name in ("path", "compiler", "python", "numpy", "os", "cpu", "caches", "environment"):
        assert f"{name}: " in out


def test_info_as_json(capsys, monkeypatch):
    monkeypatch.setenv("OMP_NUM_THREADS", "3")
    assert main(["info", "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert report["environment"]["OMP_NUM_THREADS"] == "3"
    assert report["numpy"] == np.__version__
    assert report["python"].startswith("CPython ")
    assert report["compiler"].split()[0] in ("gcc", "clang")
    assert report["available"] == list(linattn._core.settings.available_isas())


def test_info_runs_where_the_environment_is_wrong():
    wrong = {"LINATTN_ISA": "mmx", "LINATTN_NUM_THREADS": "many"}
    status, out, err = command("info", "--json", **wrong)
    report = json.loads(out)
    assert status == 1
    assert report["environment"]["LINATTN_ISA"] == "mmx"
    assert report["instruction set"] == report["available"][0] and report["threads"] >= 1
    assert ["mmx" in report["problems"][0], "'many'" in report["problems"][1]] == [True, True]
    assert err.count("error: environment variable LINATTN_") == 2


@pytest.mark.parametrize("name", [*slow("selftest"), "timing"])
def test_nothing_else_does(name):
    status, out, err = command(name, LINATTN_ISA="mmx")
    assert (status, out, err.count("\n")) == (1, "", 1)
    assert err.startswith("error: environment variable LINATTN_ISA: ")


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="a device of Linux")
@pytest.mark.parametrize("given", ["info", *slow("info --json")])
@pytest.mark.parametrize("to", [">&-", "> /dev/full"])
def test_output_that_cannot_be_written_is_an_error_of_one_line(given, to):
    line = f'"{sys.executable}" -m linattn {given} {to}'
    done = subprocess.run(["sh", "-c", line], stderr=subprocess.PIPE, text=True, check=False)
    assert (done.returncode, done.stderr.count("\n")) == (1, 1)
    assert done.stderr.startswith("error: ")


def test_running_a_program_needs_torch(tmp_path):
    (tmp_path / "torch.py").write_text("raise ImportError('none', name='torch')")
    done = python("-m", "linattn.torch", "program.py", PYTHONPATH=str(tmp_path))
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.count("\n") == 1
    assert "linattn.torch needs torch: pip install -e '.[torch]'" in done.stderr


def test_it_is_called_linattn():
    assert command("--help")[1].startswith("usage: linattn [-h]")
    status, _, err = command("info", "--wrong")
    assert status == 2
    assert err.startswith("usage: linattn info [-h] [--json]")
    assert err.endswith("linattn info: error: unrecognized arguments: --wrong\n")


@pytest.mark.skipif(sys.platform == "win32", reason="pipes of Unix")
@pytest.mark.parametrize(
    "given", ["info", *slow("--help", "info --json", "selftest", "timing --help")]
)
def test_a_reader_that_leaves_is_no_error(given):
    read, write = os.pipe()
    os.close(read)
    command = [sys.executable, "-m", "linattn", *given.split()]
    try:
        done = subprocess.run(command, stdout=write, stderr=subprocess.PIPE, check=False)
    finally:
        os.close(write)
    assert done.stderr == b""
    assert done.returncode == 141 or "--help" in given  # which argparse prints without looking


@pytest.mark.slow
def test_selftest(capsys):
    before = linattn.get_isa()
    assert main(["selftest"]) == 0
    *lines, last = capsys.readouterr().out.splitlines()
    assert last == "selftest passed"
    assert [tuple(line.split()[:2]) for line in lines] == [
        (isa, dtype) for isa in settings.available_isas() for dtype in ("float32", "float64")
    ]
    assert linattn.get_isa() == before


def test_selftest_tells_all_if_asked(capsys, monkeypatch):
    monkeypatch.setattr(settings, "available_isas", lambda: (linattn.get_isa(),))
    assert main(["selftest", "-v"]) == 0
    out = capsys.readouterr().out
    assert all(f"    {operator} " in out for operator in selftest.OPERATORS)
    assert out.endswith("selftest passed\n")


def test_selftest_has_every_operator():
    names = {call.name for call in every_call()} & set(linattn.__all__)
    assert set(selftest.OPERATORS) == names


@pytest.mark.slow
def test_selftest_finds_a_fault(capsys, monkeypatch):
    right = linattn.causal
    monkeypatch.setattr(settings, "available_isas", lambda: (linattn.get_isa(),))
    monkeypatch.setattr(linattn, "causal", lambda *a, **k: 1.01 * right(*a, **k))
    assert main(["selftest"]) == 1
    out = capsys.readouterr().out
    assert out.endswith("selftest failed\n")
    assert "    causal float32 (2, 1, 1, 1)" in out and "    delta " not in out


def test_timing(timed, tmp_path):
    file = tmp_path / "rows.json"
    out, err = timed("--json", str(file))
    assert "NumPy, chunked" in out.partition("arrays of ones")[0]  # it comes first
    assert "N = 50" in out and "N = 70" in out
    assert err == ""  # no progress bar where there is no terminal
    data = json.loads(file.read_text())
    assert [row["name"] for row in data["heads"]][:2] == ["linattn", "NumPy, chunked"]
    assert all(row["forward"] > 0 for row in data["heads"])
    assert data["config"]["version"] == linattn.__version__
    assert [(row["n"], row["name"]) for row in data["rows"]] == [
        (n, name) for n in (50, 70) for name in timing.CONTENDERS
    ]
    assert all(row["seconds"] > 0 and row["speedup"] > 0 for row in data["rows"])
    assert "(Q K^T) V is called once" in out and "published" not in out


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_timing_dtype(timed, dtype):
    assert f"{dtype} arrays of ones" in timed("--dtype", dtype)[0]


def test_timing_threads(timed):
    pytest.importorskip("threadpoolctl")
    before = linattn.get_num_threads()
    assert "1 threads" in timed("--threads", "1")[0]
    assert linattn.get_num_threads() == before


def test_no_command_is_its_help(capsys):
    assert main([]) == 0
    printed = capsys.readouterr()
    assert printed.err == "" and all(
        name in printed.out for name in ("info", "selftest", "timing", "bench")
    )


def test_timing_ends_in_a_conclusion(timed, monkeypatch):
    *_, last = timed()[0].splitlines()
    assert re.fullmatch(
        r"linattn is \d+\.\d times as fast forward( and .*)? as the fastest form written by hand\. "
        r"At N = 70, linattn\.noncausal is \d+ times as fast as \(Q K\^T\) V, .*\.",
        last,
    )
    # Where the operands do not fit, all is skipped.
    monkeypatch.setattr(memory_use, "available", lambda: 1000)
    out, _ = timed()
    assert out.splitlines()[-1].endswith("as the fastest form written by hand.")
    assert out.count("skipped: Q, K and V would take") == 8


def test_timing_plot(timed, tmp_path):
    pytest.importorskip("matplotlib")
    file = tmp_path / "plot.png"
    timed("--plot", str(file))
    assert file.read_bytes().startswith(b"\x89PNG")


def test_timing_skips_what_does_not_fit(timed, monkeypatch):
    monkeypatch.setattr(memory_use, "available", lambda: 15_000)
    lines = timed("--repeat", "1")[0].splitlines()
    at = lines.index(next(line for line in lines if line.startswith("N = 50")))
    assert "skipped: would take 0.0 MB" in lines[at + 1]
    assert all("skipped" not in line for line in lines[at + 2 : at + 5])


def test_timing_goes_on_after_running_out_of_memory(timed, monkeypatch):
    def full(q, k, v):
        raise MemoryError

    monkeypatch.setitem(timing.CONTENDERS, timing.QUADRATIC, full)
    out, _ = timed()
    assert out.count("skipped: ran out of memory") == 2
    assert out.count("linattn.causal") == 2


def test_timing_checks_results_first(timed, monkeypatch):
    with monkeypatch.context() as patch:
        patch.setitem(timing.CONTENDERS, "linattn.causal", lambda q, k, v: v)
        out, err = timed(status=1)
    assert "linattn.causal disagrees" in err and "speed-up" not in out
    monkeypatch.setattr(peers, "EPS", 1.0)
    assert "NumPy, chunked: these results differ" in timed(status=1)[1]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["nothing"], "invalid choice: 'nothing'"),
        (["timing", "-n", "0"], "at least 1, got '0'"),
        (["timing", "-n", "many"], "at least 1, got 'many'"),
        (["timing", "-d", "-3"], "-d"),
        (["timing", "--repeat", "1.5"], "got '1.5'"),
        (["timing", "--dtype", "float16"], "float16"),
        (["timing", "--json", "/no/such/folder/x.json"], "cannot write"),
        ([*SMALL, "--threads", "0"], "argument --threads: expected "),
        ([*SMALL, "--threads", "99999"], "argument --threads: expected "),
        (["timing", "--plot", "x.xyz"], ".png"),
    ],
)
def test_bad_arguments(capsys, arguments, message):
    for option, package in (("--threads", "threadpoolctl"), ("--plot", "matplotlib")):
        if option in arguments:
            pytest.importorskip(package)
    with pytest.raises(SystemExit) as stopped:
        main(arguments)
    assert stopped.value.code == 2
    assert message in capsys.readouterr().err


@pytest.mark.parametrize(
    ("option", "value", "package"),
    [("--plot", "x.png", "matplotlib"), ("--threads", "1", "threadpoolctl")],
)
def test_option_without_its_package(capsys, monkeypatch, option, value, package):
    find = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda n: None if n == package else find(n))
    with pytest.raises(SystemExit) as stopped:
        main(["timing", option, value])
    assert stopped.value.code == 2
    assert f"pip install {package}" in capsys.readouterr().err


@pytest.mark.skipif(os.name != "posix", reason="signals of POSIX")
def test_ctrl_c(children_heed_ctrl_c):
    command = [sys.executable, "-m", "linattn", "timing", "-n", "3000", "--repeat", "100000"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    try:
        process.stdout.readline()  # it has begun
        time.sleep(0.5)
        process.send_signal(signal.SIGINT)
        _, err = process.communicate(timeout=20)
    finally:
        process.kill()
    # Where exec() was interrupted, in an import, CPython ends itself by the signal: 130 in a shell.
    assert process.returncode in (130, -signal.SIGINT)
    assert err.strip() == "interrupted"


@pytest.mark.parametrize("asked", [True, False])
def test_timing_leaves_out_what_takes_too_long(capsys, monkeypatch, asked):
    """By its time at another N, and unless that N was asked for."""
    monkeypatch.setattr(timing, "PATIENCE", 0.0)
    monkeypatch.setattr(timing, "LENGTHS", (50, 70))
    assert main([*SMALL[:1], *(SMALL[1:4] if asked else []), "-d", "8", "--repeat", "1"]) == 0
    out = capsys.readouterr().out
    assert out.count("skipped: would take about 0 s; -n 70 runs it") == (not asked)
    assert out.count("\nlinattn.noncausal") == 2


class Terminal:
    """A stream that shows a bar."""

    written = ""

    def isatty(self):
        return True

    def write(self, text):
        self.written += text

    def flush(self):
        pass


def test_timing_shows_a_bar(monkeypatch):
    bar = Bar(terminal := Terminal())
    timing.experiment(20, 4, "float64", 1, bar)
    bar.step("the end")
    assert bar.done == bar.total == 2 * 3 + 20 / 4
    assert "linattn.causal" in terminal.written and " s left" in terminal.written


def test_selftest_shows_a_bar(monkeypatch, capsys):
    monkeypatch.setattr(sys, "stderr", terminal := Terminal())
    monkeypatch.setattr(selftest, "OPERATORS", {"delta": selftest.OPERATORS["delta"]})
    monkeypatch.setattr(settings, "available_isas", lambda: 3 * (linattn.get_isa(),))
    assert main(["selftest"]) == 0
    assert ": delta" in terminal.written and " s left" in terminal.written
    assert terminal.written.endswith("\r\x1b[K")


def test_time_left(monkeypatch):
    now = 0.0
    monkeypatch.setattr(time, "perf_counter", lambda: now)
    bar = Bar(terminal := Terminal(), total=100)
    bar.step("first", 10)
    assert "left" not in terminal.written  # nothing to tell it by
    now = 20.0
    bar.step("second", 40)
    assert "[###...........................] second, 3 min 0 s left" in terminal.written
    now = 22.0
    bar.step("third", 50)
    assert "third, 22 s left" in terminal.written
