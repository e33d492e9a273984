"""Times of every operator, for asv (``pip install asv virtualenv``): one thread, heads of 64.

``make history COMMITS=A..B`` builds each commit, times it, and draws the times as pages.  These are
as good as the machine was quiet and alike each time; whether one commit is slower than another,
../compare.py says.  ``LINATTN_ISAS=x86-64-v3`` in the environment builds, and so times, that set
alone.
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
    """One call of each."""

    params: ClassVar = [NAMES]
    param_names: ClassVar = ["operator"]
    sample_time = 0.05
    timeout = 600  # seconds, on a machine that does other work as well

    def setup(self, operator: str) -> None:
        linattn.set_num_threads(1)
        self.call = calls(N, HEADS)[operator]

    def time_call(self, operator: str) -> None:
        self.call.run()
