"""Every instruction set of this CPU, selected by the call and by the environment."""

import threading
from functools import partial

import numpy as np
import pytest
from bounds import check
from cases import BACKWARD, FORWARD, VARIANTS, Case

import linattn
from linattn import _config, feature_maps

OPERATORS = FORWARD + BACKWARD
SIZES = [(1, 1, 1), (17, 5, 3), (33, 16, 31), (70, 65, 66)]

PRINT_ISA = "import linattn; print(linattn.get_isa())"


def test_one_is_in_use():
    assert linattn.get_isa() in _config.available_isas()


@pytest.mark.parametrize("name", _config.available_isas())
@pytest.mark.parametrize("operator", OPERATORS)
def test_against_the_twin(isa, name, operator):
    isa(name)
    assert linattn.get_isa() == name
    for feature_map, normalize, dtype in VARIANTS:
        for n, d, m in SIZES:
            case = Case(
                operator, n, d, m,
                feature_map=feature_map, normalize=normalize, dtype=dtype, lead=(2,),
            )  # fmt: skip
            check(linattn, case)


@pytest.mark.parametrize("name", _config.available_isas())
def test_environment(interpreter, name):
    stdout, _ = interpreter(PRINT_ISA, LINATTN_ISA=name)
    assert stdout.strip() == name


def test_best_is_the_default(interpreter):
    stdout, _ = interpreter(PRINT_ISA, LINATTN_ISA="")
    assert stdout.strip() == _config.available_isas()[0]


def test_unknown_name_in_the_environment(interpreter):
    """Neither ignored in silence nor a crash: an error or a warning that quotes the name."""
    script = f"import warnings; warnings.simplefilter('error')\n{PRINT_ISA}"
    _, stderr = interpreter(script, LINATTN_ISA="mmx", code=1)
    assert "mmx" in stderr
    assert _config.available_isas()[0] in stderr


def test_config_tells(isa, capsys):
    for name in _config.available_isas():
        isa(name)
        text = linattn.show_config() or capsys.readouterr().out
        assert name in str(text)


def test_a_call_keeps_its_set(isa):
    """One made of many calls of kernels, too, while another thread changes the set."""
    names = _config.available_isas()
    if len(names) < 2:
        pytest.skip("one instruction set here")
    q, k, v = np.random.default_rng(0).standard_normal((3, 6000, 16)).astype(np.float32)
    phi = feature_maps.PositiveRandomFeatures.sample(16, 20)
    call = partial(linattn.causal, 4 * q, 4 * k, v, feature_map=phi)
    expected = set()
    for name in names:
        isa(name)
        expected.add(call().tobytes())
    assert len(expected) > 1
    stop = threading.Event()

    def change():
        while not stop.is_set():
            for name in names:
                linattn.set_isa(name)

    other = threading.Thread(target=change)
    other.start()
    try:
        results = {call().tobytes() for _ in range(20)}
    finally:
        stop.set()
        other.join()
    assert results <= expected
