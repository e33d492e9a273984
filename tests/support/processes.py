"""Programs in processes of their own: how they end, and what they print."""

import os
import subprocess
import sys


def start(*command, cwd=None, timeout=None, **environment):
    """The program that has ended, with its ``returncode``, ``stdout`` and ``stderr``."""
    return subprocess.run(
        command, cwd=cwd, env={**os.environ, **environment}, capture_output=True, text=True,
        timeout=timeout, check=False,
    )  # fmt: skip


def python(*arguments, **options):
    """The same of this interpreter."""
    return start(sys.executable, *arguments, **options)


def output(*arguments, **options):
    """What a program of this interpreter prints, which ends without an error."""
    done = python(*arguments, **options)
    assert done.returncode == 0, f"{arguments}\n{done.stdout[-5000:]}\n{done.stderr[-5000:]}"
    return done.stdout
