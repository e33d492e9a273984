"""Fixtures: threads and instruction set are put back; interpreters, experiments at one call."""

import importlib
import os
import signal
import subprocess
import sys
from pathlib import Path

# The oracle's products are small, and BLAS threads that spin would only be in the way.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

import numpy as np
import pytest

import linattn

HERE = Path(__file__).resolve().parent


def pytest_report_header():
    return (
        f"linattn: {linattn.get_isa()}, {linattn.get_num_threads()} threads, numpy {np.__version__}"
    )


@pytest.fixture
def threads():
    """linattn.set_num_threads, undone afterwards."""
    before = linattn.get_num_threads()
    yield linattn.set_num_threads
    linattn.set_num_threads(before)


@pytest.fixture
def isa():
    """linattn.set_isa, undone afterwards."""
    before = linattn.get_isa()
    yield linattn.set_isa
    linattn.set_isa(before)


@pytest.fixture
def children_heed_ctrl_c():
    """Where they inherit a deaf ear, as what a shell has in its background."""
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
            cwd=HERE,
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
    """Imports one of the experiments' modules by its name."""
    monkeypatch.syspath_prepend(str(HERE.parent / "experiments"))
    return importlib.import_module
