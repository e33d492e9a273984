"""Times of every operator, for asv (``pip install asv virtualenv``): one thread, heads of 64.

``make history COMMITS=A..B`` builds each commit, times it, and plots the times.  The times are only
comparable if the machine is equally quiet for each commit; ../compare.py decides whether one commit
is slower than another.  ``LINATTN_ISAS=x86-64-v3`` in the environment builds and times that
instruction set alone.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import ClassVar

sys.path.append(str(Path(__file__).resolve().parent.parent))
from history import NAMES, calls

import linattn

HEADS, N = 4, 2048


class Operators:
    """One call of each operator."""

    params: ClassVar = [NAMES]
    param_names: ClassVar = ["operator"]
    sample_time = 0.05
    timeout = 600  # seconds, on a machine that does other work as well

    def setup(self, operator: str) -> None:
        linattn.set_num_threads(1)
        self.call = calls(N, HEADS)[operator]

    def time_call(self, operator: str) -> None:
        self.call.run()
