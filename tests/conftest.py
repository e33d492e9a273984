"""Options, fixtures, parallel runs and the check of skips."""

import atexit
import gc
import importlib
import os
import signal
import subprocess
import sys
from fnmatch import fnmatchcase
from pathlib import Path

# Products in tests are small, and threads of BLAS and of PyTorch that spin only in the way.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
os.environ.setdefault("MKL_NUM_THREADS", "1")

import numpy as np
import pytest

import linattn
from linattn import _linattn

HERE = Path(__file__).resolve().parent


def pytest_addoption(parser):
    parser.addoption(
        "--listed-skips",
        action="store_true",
        help="a test that is skipped, but not in tests/allowed_skips.txt, has failed",
    )


@pytest.hookimpl(tryfirst=True)
def pytest_cmdline_main(config):
    """Run all tests on every processor unless -n is given, and tests of named files on one.

    A worker takes a range of files, so that not every worker imports every bridge.
    """
    option = config.option
    of_all = config.args_source is not config.ArgsSource.ARGS and not hasattr(config, "workerinput")
    if of_all and getattr(option, "numprocesses", 0) is None and not option.usepdb:
        option.numprocesses = min(linattn.get_num_threads(), 8)
        option.dist = "worksteal"


@pytest.hookimpl(wrapper=True)
def pytest_collection(session):
    """Modules and tests live as long as the process: collections of garbage need not visit them.

    JAX reports what is not collected at the end.
    """
    gc.disable()
    atexit.register(gc.unfreeze)
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()


def pytest_collection_modifyitems(items):
    """Tests of tools, among them the longest, come first: no worker waits for one at the end."""
    items.sort(key=lambda item: item.path.parent.name != "tools")


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item):
    return judged((yield), item.config)


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report(collector):
    return judged((yield), collector.config)


def judged(report, config):
    """The report; with --listed-skips it becomes a failure if the skip is not listed."""
    if config.getoption("--listed-skips") and report.skipped and not hasattr(report, "wasxfail"):
        name, why = report.nodeid.rpartition("tests/")[2], report.longrepr[2]
        rows = (HERE / "allowed_skips.txt").read_text().splitlines()
        listed = (row.split(" | ") for row in rows if row and not row.startswith("#"))
        if not any(
            fnmatchcase(name, x) and fnmatchcase(why, f"Skipped: {y}") for x, y, _ in listed
        ):
            report.outcome = "failed"
            report.longrepr = f"{why}; tests/allowed_skips.txt does not list that"
    return report


def pytest_report_header():
    return (
        f"linattn: {linattn.get_isa()}, {linattn.get_num_threads()} threads, numpy {np.__version__}"
    )


@pytest.fixture
def threads():
    """linattn.set_num_threads; the number is restored afterwards."""
    before = linattn.get_num_threads()
    yield linattn.set_num_threads
    linattn.set_num_threads(before)


@pytest.fixture
def one_torch_thread():
    """PyTorch uses one thread: models this small are slower on two."""
    import torch

    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(params=[0, 2], ids=["pairs", "AMX"])
def sums(request):
    """Products of bfloat16 by pairs one by one, and the sums of AMX in plain C."""
    before = _linattn.get_amx()
    _linattn.set_amx(request.param)
    yield
    _linattn.set_amx(before)


@pytest.fixture
def poison():
    """linattn._linattn.poison_scratch; scratch is not filled afterwards."""
    yield _linattn.poison_scratch
    _linattn.poison_scratch(0)


@pytest.fixture
def isa():
    """linattn.set_isa; the instruction set is restored afterwards."""
    before = linattn.get_isa()
    yield linattn.set_isa
    linattn.set_isa(before)


@pytest.fixture
def children_heed_ctrl_c():
    """Handle SIGINT, which a process started in a shell's background ignores."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.fixture
def interpreter():
    """Run a script in a fresh interpreter, where it may crash, hang or fork: (stdout, stderr)."""

    def run(script, *, timeout=60, code=0, **environment):
        done = subprocess.run(
            [sys.executable, "-c", script],
            env={**os.environ, **environment},
            cwd=HERE / "support",
            capture_output=True,
            text=True,
            timeout=timeout,
            check=False,
        )
        assert done.returncode == code, f"exit status {done.returncode}\n{done.stderr}"
        return done.stdout, done.stderr

    return run


@pytest.fixture
def experiment(monkeypatch):
    """Import a module of the experiments by name."""
    monkeypatch.syspath_prepend(str(HERE.parent / "experiments"))
    return importlib.import_module
