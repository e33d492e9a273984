"""Decays count as 0 below the smallest normal number, where processors may be slow."""

import os
import platform
import signal
import sys

import numpy as np
import pytest

import linattn

ONE = np.ones((4, 1), "f4")
TINY = float(np.finfo("f4").tiny)
FLUSHES = platform.machine() in ("x86_64", "AMD64")


def decayed(g: float) -> dict:
    """A state of 1 after one to four decays of exp(g), where nothing is written to it.

    In softmax attention, a value of 1 beside one of 0, whose weight is as much larger.
    """
    gates, none, column = np.full(4, g, "f4"), np.zeros_like(ONE), np.full((4, 1), g, "f4")
    state, scanned = linattn.State(ONE[:1], None), linattn.State(ONE[0], None)
    momentum, pair = linattn.State(ONE[:1], none[:1]), np.array([[0], [1]], "f4")
    found = {
        "gated": linattn.gated(ONE, none, ONE, gates, initial_state=state),
        "gated by channel": linattn.gated(ONE, none, ONE, column, initial_state=state),
        "gated_delta": linattn.gated_delta(ONE, none, ONE, gates, gates, initial_state=state),
        "dplr": linattn.dplr(ONE, none, ONE, none, none, gates, initial_state=state),
        "momentum_delta": linattn.momentum_delta(
            ONE, none, none, none, gates, gates, gates, gates, initial_state=momentum
        ),
        "softmax_attention": linattn.softmax_attention(
            np.arange(1, 5, dtype="f4")[:, None], pair * np.float32(g), pair
        ),
        "linear_scan": linattn.linear_scan(np.exp(column), none, initial_state=scanned),
        "selective_scan": linattn.selective_scan(
            none, ONE, column[:1], ONE, ONE, initial_state=state
        ),
    }
    steps = []
    for i in range(4):
        o, state = linattn.gated_step(ONE[i], none[i], ONE[i], gates[i], state)
        steps.append(o)
    found["gated_step"] = steps
    return {name: np.reshape(o, 4) for name, o in found.items()}


def test_results_are_normal_or_zero():
    for name, o in decayed(-30).items():
        assert (abs(o[:2] / np.exp([-30, -60]) - 1) < 1e-5).all(), name
        if FLUSHES:
            np.testing.assert_array_equal(o[2:], 0, err_msg=name)
        else:
            assert (o[2:] < TINY).all(), name


def test_without_decays_numbers_stay_subnormal():
    v = np.full((1, 1), TINY / 8, "f4")
    np.testing.assert_array_equal(
        linattn.causal(ONE[:1], ONE[:1], v, normalize=False, feature_map="identity"), v
    )


def half_of_the_smallest() -> float:
    return sys.float_info.min / 2


def test_the_caller_keeps_its_modes(threads):
    for count in (1, 2):
        threads(count)
        decayed(-30)
        assert half_of_the_smallest() > 0


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no signals here")
def test_signal_handlers_have_the_callers_modes(threads):
    """They run in the middle of a call, which takes longer than it goes without looking."""
    found = []
    q = np.ones((4, 4096, 256), "f4")
    g = np.full(q.shape[:2], -0.01, "f4")
    threads(1)
    before = signal.signal(signal.SIGALRM, lambda *_: found.append(half_of_the_smallest()))
    try:
        signal.setitimer(signal.ITIMER_REAL, 0.02, 0.02)
        while len(found) < 6:
            linattn.gated(q, q, q, g)
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
    assert min(found) > 0
