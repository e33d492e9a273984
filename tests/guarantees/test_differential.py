"""The differential tester finds nothing wrong here, and does find what is made wrong."""

from functools import cache

import differential
import draws_scans
import numpy as np
import pytest
from draws_operators import OPERANDS, RECURRENCES
from slow import grid

import linattn
from linattn._core.settings import available_isas

pytestmark = pytest.mark.any_isa
ISAS = available_isas()


@pytest.fixture(autouse=True)
def settings(threads, isa):
    """Threads and instruction set, which each case sets, are put back."""


@pytest.mark.parametrize(
    ("first", "last"), [(0, 250), pytest.param(250, 4_000, marks=pytest.mark.slow)]
)
def test_random_cases(poison, first, last):
    """Half of them with poisoned scratch."""
    for number in range(first, last):
        poison(0xFF if number % 2 else 0)
        message = differential.failure(20, number, ISAS)
        assert message is None, message


def nudged(result, amount):
    """The first array that has numbers, one of them moved by so much of the largest."""
    x = next((x for x in differential.flat(result) if x.size), None)
    if x is not None and x.flags.writeable:
        at = (0,) * x.ndim
        x[at] += x.dtype.type(amount * abs(x.astype(float)).max() + np.finfo(np.float32).tiny)
    return result


FUNCTIONS = [
    *(
        name + end
        for name in (*OPERANDS, "causal_conv1d", "log_decay")
        for end in ("", "_backward")
    ),
    *(row.step for row in RECURRENCES.values()),
    *(name + end for name in (*draws_scans.ROWS, "slstm") for end in ("", "_backward", "_step")),
    "causal_conv1d_step",
]


@grid(lambda name: name[:5] != "slstm", name=FUNCTIONS)
def test_a_wrong_number_is_found(monkeypatch, name):
    """One number off by 3 %, more than a number of 16 bits may be."""
    f = getattr(linattn, name)
    monkeypatch.setattr(linattn, name, lambda *x, **y: nudged(f(*x, **y), 0.03))
    assert any("times what is allowed" in message for message in failures(name))


def test_a_bit_by_the_number_of_threads_is_found(monkeypatch):
    f = linattn.causal

    def causal(*operands, **options):
        result = f(*operands, **options)
        return nudged(result, 2e-16 if linattn.get_num_threads() > 1 else 0)

    monkeypatch.setattr(linattn, "causal", causal)
    assert any("on contiguous copies" in x for x in failures("causal"))


def test_an_operand_written_to_is_found(monkeypatch):
    f = linattn.noncausal

    def noncausal(q, *operands, **options):
        result = f(q, *operands, **options)
        if q.size and q.flags.writeable:
            q[(0,) * q.ndim] = 1 - q[(0,) * q.ndim]
        return result

    monkeypatch.setattr(linattn, "noncausal", noncausal)
    assert any("operand 0 was written to" in x for x in failures("noncausal"))


@cache
def names() -> list[str]:
    """Of the first cases."""
    with np.errstate(all="ignore"):
        return [differential.draw(0, n).name for n in range(600)]


def failures(name):
    """What is found in the first cases of one function."""
    mine = (n for n, other in enumerate(names()) if other == name)
    messages = (differential.failure(0, n, ISAS[:1]) for n in mine)
    return [message for message in messages if message]


@pytest.mark.usefixtures("poison")  # which main leaves in force
def test_a_failure_says_how_to_repeat_it(monkeypatch, capsys):
    f = linattn.causal
    monkeypatch.setattr(linattn, "causal", lambda *x, **y: nudged(f(*x, **y), 1))
    assert differential.main(["--cases", "300", "--isa", ISAS[0], "--poison"]) == 1
    line = capsys.readouterr().out.splitlines()[0]
    command, arguments = line.split(".py ")
    assert command == "python tools/differential"
    assert arguments.endswith(f"--cases 1 --isa {ISAS[0]} --poison")
    assert differential.main(arguments.split()) == 1
    monkeypatch.undo()
    assert differential.main(arguments.split()) == 0


def test_a_case_depends_on_its_number_alone():
    draw = lambda: [differential.draw(5, n) for n in (7, 3, 11, *range(20, 60))]  # noqa: E731
    differential.draw(5, 0)
    for x, y in zip(draw(), draw(), strict=True):
        assert str(x) == str(y)
        arrays, again = (
            differential.flat([*t.operands, *(t.options[name] for name in t.state_ways)])
            for t in (x, y)
        )
        for a, b in zip(arrays, again, strict=True):
            assert a.tobytes() == b.tobytes()
