"""Every instruction set of this CPU, selected by the call and by the environment."""

import random
import sys
from contextlib import contextmanager
from itertools import pairwise

import numpy as np
import pytest
from every_call import Call, every_call
from states import flat

import linattn
from linattn import feature_maps
from linattn._core import settings

PRINT_ISA = "import linattn; print(linattn.get_isa())"


def test_one_is_in_use():
    assert linattn.get_isa() in settings.available_isas()


@pytest.mark.parametrize("name", settings.available_isas())
def test_environment(interpreter, name):
    stdout, _ = interpreter(PRINT_ISA, LINATTN_ISA=name)
    assert stdout.strip() == name


def test_best_is_the_default(interpreter):
    stdout, _ = interpreter(PRINT_ISA, LINATTN_ISA="")
    assert stdout.strip() == settings.available_isas()[0]


def test_unknown_name_in_the_environment(interpreter):
    """Neither ignored in silence nor a crash: an error or a warning that quotes the name."""
    script = f"import warnings; warnings.simplefilter('error')\n{PRINT_ISA}"
    _, stderr = interpreter(script, LINATTN_ISA="mmx", code=1)
    assert "mmx" in stderr
    assert settings.available_isas()[0] in stderr


def test_config_tells(isa, capsys):
    for name in settings.available_isas():
        isa(name)
        text = linattn.show_config() or capsys.readouterr().out
        assert name in str(text)


def test_a_call_keeps_its_set(isa):
    """One made of several calls of kernels, too, while the set changes between any two lines."""
    names = settings.available_isas()
    if len(names) < 2:
        pytest.skip("one instruction set here")

    def made():
        isa(names[0])  # computes the states that calls begin with
        return [*calls()]

    expected = []
    for name in names:
        of_set = made()
        isa(name)
        expected.append([[x.tobytes() for x in call.results()] for call in of_set])
    assert all(x != y for x, y in pairwise(expected))
    for seed in range(4):
        rng = random.Random(seed)
        for i, call in enumerate(made()):
            with each_line(lambda rng=rng: isa(rng.choice(names))) as changes:
                result = call.run()
            assert len(changes) > 1 or isinstance(call.f, np.ufunc)
            found = [x.tobytes() for x in flat(result)]
            assert any(found == of_set[i] for of_set in expected), call.name


def calls():
    """One of every operator, and those that `_call.pools` and `_call.mapped` make of several."""
    yield from every_call(70, 9, 17)
    q, k, v = (x.copy() for x in np.random.default_rng(0).standard_normal((3, 2, 70, 9)))
    gates = q[..., 0], k[..., 0]
    phi = feature_maps.DPFP(nu=2)
    yield Call("causal", linattn.causal, (q, k, v), {"feature_map": phi})
    yield Call("causal_backward", linattn.causal_backward, (q, k, v, v), {"feature_map": phi})
    for name, operands in ("causal", (q, k, v)), ("mlstm", (q, k, v, *gates)):
        f, backward = getattr(linattn, name), getattr(linattn, f"{name}_backward")
        yield Call(name, f, operands, {"return_state": True, "state_at": [20, 50]})
        at = f(*operands, return_state=True, state_at=[20, 50])[1]
        at = linattn.State(*(x if x is None else np.ones_like(x) for x in at))
        yield Call(name, backward, (*operands, v), {"grad_state": at, "state_at": [20, 50]})


@contextmanager
def each_line(f):
    """Call f before each line of the package; a list that grows with every call."""
    called = []

    def line(_frame, event, _arg):
        if event == "line":
            called.append(f())
        return line

    def function(frame, _event, _arg):
        return line if str(frame.f_globals.get("__package__")).startswith("linattn.") else None

    before = sys.gettrace()
    sys.settrace(function)
    try:
        yield called
    finally:
        sys.settrace(before)
