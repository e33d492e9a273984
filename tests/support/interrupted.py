"""Ctrl-C in a long call of every operator, one after another: see test_interrupts.py.

A timer of processor time interrupts each call.  The program prints the processor time until the
exception arrives, in ms, which does not depend on how busy the machine is.  System time, spent on
finding pages for results, is not counted.
"""

from __future__ import annotations

import resource
import signal
import sys
from typing import Any

import numpy as np
from every_call import Call, every_call

import linattn

AFTER = 0.03  # seconds


#: Operands that have leading axes.
ROWS = {"q", "k", "v", "a", "b", "g", "beta", "erase", "bonus", "x", "i", "f", "z", "grad_out"}


def longer(call: Call, times: int, only: str) -> Call:
    """Repeat operands over many heads by strides of 0, so that only results take memory.

    With `only`, just that operand has many heads: grouped queries.
    """
    options = {x: y for x, y in call.options.items() if x not in ("out", "in_place")}

    def heads(x: Any) -> Any:
        if isinstance(x, tuple):
            return type(x)(*map(heads, x))
        return np.broadcast_to(x, (times, *x.shape))

    rows = {only} if only else ROWS
    options |= {x: heads(options[x]) for x in rows & options.keys()}
    some = 1 if only or call.name.startswith(("linformer", "causal_conv", "log_decay")) else None
    operands = (*map(heads, call.operands[:some]), *(call.operands[some:] if some else ()))
    if call.name.startswith(("linformer_back", "causal_conv1d_back", "log_decay_back")):
        operands = (*operands[:-1], heads(operands[-1]))
    return Call(call.name, call.f, operands, options)


def user_time() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_utime


def interrupted(call: Call) -> float | None:
    """Milliseconds from the signal to the exception, or None if the call ended before."""
    begin, late = user_time(), None
    try:  # a second one, for the signal that comes just as the call ends
        try:
            signal.setitimer(signal.ITIMER_VIRTUAL, AFTER)
            call.run()
        except KeyboardInterrupt:
            late = (user_time() - begin - AFTER) * 1e3
        signal.setitimer(signal.ITIMER_VIRTUAL, 0)
    except KeyboardInterrupt:
        pass
    return late


def main(n: str, d: str, m: str, times: str, only: str = "") -> None:
    signal.signal(signal.SIGVTALRM, signal.default_int_handler)
    linattn.set_num_threads(1)
    for call in every_call(int(n), int(d), int(m), lead=()):
        if only and "causal" not in call.name and "softmax" not in call.name:
            continue  # by channels is told by the number of axes
        print(call.name.replace(" ", ""), interrupted(longer(call, int(times), only)), flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
