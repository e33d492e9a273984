"""Products of bfloat16 operands by AMX: when they are chosen, and the sums that they compute.

The instructions run on processors with AMX alone.  Their sums are tested in plain C, which the same
kernels call in their place (src/kernel/tiles/amx.h); test_products.py has the guarantees.  The
instructions themselves have the same bits: on a processor with AMX or, elsewhere, computed by a
signal handler (test_amx_instructions.py).
"""

import json
import os
import subprocess
import sys

import numpy as np
import pytest
from slow import slow
from table import ATTENTION, first_of

import linattn
from linattn import _linattn
from linattn._core import settings

ml_dtypes = pytest.importorskip("ml_dtypes")
BFLOAT = np.dtype(ml_dtypes.bfloat16)
OFF, ON, PLAIN, TRAPPED = range(4)
ISAS = settings.available_isas()
WITHOUT_FMA = "x86-64-v2", "generic"
CHOICES = """import linattn; from linattn import _linattn; print(_linattn.get_amx())
for name in ("bfloat16", "float32"): linattn.set_products(name); print(_linattn.get_amx())"""
INFO = "import sys, linattn.__main__ as m; sys.exit(m.main(['info', '--json']))"


@pytest.fixture
def plain(isa):
    """Select an instruction set and the sums of AMX in plain C, for products of bfloat16."""
    before = _linattn.get_amx()

    def select(name):
        isa(name)
        _linattn.set_amx(PLAIN)

    with linattn.products("bfloat16"):
        yield select
    _linattn.set_amx(before)


# --- the choice -------------------------------------------------------------------------------


@pytest.mark.parametrize("value", [None, "0", *slow("")])
def test_used_by_default_where_it_is(interpreter, monkeypatch, value):
    """From the first choice of products of bfloat16 on."""
    monkeypatch.delenv("LINATTN_AMX", raising=False)
    monkeypatch.delenv("LINATTN_PRODUCTS", raising=False)
    given = {} if value is None else {"LINATTN_AMX": value}
    used = _linattn.has_amx and value != "0"
    stdout, _ = interpreter(INFO, LINATTN_PRODUCTS="bfloat16", **given)
    expected = "not available" if not _linattn.has_amx else "on" if used else "off"
    assert json.loads(stdout)["AMX-BF16"] == expected
    stdout, _ = interpreter(CHOICES, **given)
    assert stdout.split() == ["0", str(int(used)), str(int(used))]


def test_a_choice_is_kept(interpreter, monkeypatch):
    """Products of bfloat16 leave it as it is."""
    monkeypatch.delenv("LINATTN_AMX", raising=False)
    monkeypatch.delenv("LINATTN_PRODUCTS", raising=False)
    stdout, _ = interpreter(f"from linattn import _linattn; _linattn.set_amx(2); {CHOICES}")
    assert stdout.split() == ["2", "2", "2"]


def test_on_or_an_error_that_says_why(interpreter):
    """What the processor and the system lack, if they lack anything."""
    script = "from linattn import _linattn; print(_linattn.get_amx())"
    if _linattn.has_amx:
        stdout, _ = interpreter(script, LINATTN_AMX="1")
        assert stdout.strip() == "1"
        return
    _, stderr = interpreter(script, LINATTN_AMX="1", code=1)
    assert "ImportError: environment variable LINATTN_AMX is '1': " in stderr
    assert "no AMX-BF16" in stderr or "AMX is used on Linux" in stderr or "x86-64-v4" in stderr
    command = [sys.executable, "-m", "linattn", "info", "--json"]
    environment = os.environ | {"LINATTN_AMX": "1"}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    (problem,) = json.loads(done.stdout)["problems"]
    assert done.returncode == 1
    assert "LINATTN_AMX" in problem
    assert problem in done.stderr


def test_processor_and_system_are_both_asked():
    """As Linux lists them, for those of its versions that know AMX."""
    if not os.path.exists("/proc/cpuinfo"):
        pytest.skip("no /proc/cpuinfo")
    with open("/proc/cpuinfo", encoding="utf-8") as lines:
        words = set(lines.read().split())
    assert not _linattn.has_amx or {"amx_bf16", "amx_tile", "avx512_bf16"} <= words


def test_what_is_lacking_changes_nothing():
    if _linattn.has_amx:
        pytest.skip("AMX is here")
    before = _linattn.get_amx()
    _linattn.set_amx(PLAIN)
    try:
        with pytest.raises(ValueError, match=r"AMX|x86-64-v4"):
            _linattn.set_amx(ON)
        assert _linattn.get_amx() == PLAIN
    finally:
        _linattn.set_amx(before)


@pytest.mark.parametrize("value", ["2", "yes", "-1", " 1"])
def test_wrong_values_in_the_environment(interpreter, value):
    _, stderr = interpreter("import linattn", LINATTN_AMX=value, code=1)
    assert f"environment variable LINATTN_AMX is {value!r}: expected 0 or 1" in stderr


@pytest.mark.parametrize("choice", [-1, 4, 10**6])
def test_wrong_choices(choice):
    with pytest.raises(ValueError, match=f"choice is {choice}; expected 0 to 3"):
        _linattn.set_amx(choice)


def test_float32_products_do_not_use_it(isa):
    """Nor do operands of other dtypes."""
    rng = np.random.default_rng(0)
    q, k, v = rng.standard_normal((3, 100, 20)).astype("f4")
    expected = linattn.causal(q, k, v).tobytes()
    narrow = [x.astype(BFLOAT) for x in (q, k, v)]
    of_floats = linattn.causal(*narrow).tobytes()
    before = _linattn.get_amx()
    _linattn.set_amx(PLAIN)
    try:
        with linattn.products("bfloat16"):
            assert linattn.causal(q, k, v).tobytes() == expected
        with linattn.products("float32"):
            assert linattn.causal(*narrow).tobytes() == of_floats
    finally:
        _linattn.set_amx(before)


def test_one_isa_keeps_the_choice(plain):
    """A result of several calls has the bits of one choice."""
    plain(ISAS[0])
    rng = np.random.default_rng(0)
    q, k, v = rng.standard_normal((3, 100, 20)).astype(BFLOAT)
    expected = linattn.causal(q, k, v).tobytes()
    with settings.one_isa():
        _linattn.set_amx(OFF)
        assert linattn.causal(q, k, v).tobytes() == expected
    assert linattn.causal(q, k, v).tobytes() != expected


# --- the sums ---------------------------------------------------------------------------------


def flush(x):
    """float32, with zeros for subnormal numbers."""
    x = np.float32(x)
    return np.where(abs(x) < np.finfo("f4").tiny, np.copysign(np.float32(0), x), x)


def tdpbf16ps(c, a, b):
    """c + a b, as Intel's manual defines the instruction: even and odd factors apart.

    A product of two bfloat16 numbers is exact in float64, so that it is rounded once, but for ties.
    """
    even, odd = np.zeros_like(c), np.zeros_like(c)
    a, b = flush(a).astype("f8"), flush(b).astype("f8")
    for i in range(0, a.shape[1], 2):
        even = flush(even + a[:, i, None] * b[i])
        odd = flush(odd + a[:, i + 1, None] * b[i + 1])
    return flush(flush(c) + flush(even + odd))


def by_tiles(a, b):
    """a b, in parts of 32 numbers."""
    c = np.zeros((a.shape[0], b.shape[1]), "f4")
    for i in range(0, a.shape[1], 32):
        part = min(32, a.shape[1] - i)
        x, y = np.zeros((a.shape[0], 32), "f4"), np.zeros((32, b.shape[1]), "f4")
        x[:, :part], y[:part] = a[:, i : i + 32], b[i : i + 32]
        c = tdpbf16ps(c, x, y)
    return c


@pytest.mark.parametrize(
    ("name", "scale"),
    [(name, 1) for name in ISAS] + [(name, 1e-19) for name in ISAS if name not in WITHOUT_FMA],
)
@pytest.mark.parametrize("n", [1, 2, 15, 16, 17, 31, 32, 33, 50, 64])
def test_order_of_sums(plain, name, n, scale):
    """The state after one chunk is the product of its keys and values: to the bit.

    With the second scale, many products are subnormal, which only a fused multiply-add keeps.
    """
    plain(name)
    rng = np.random.default_rng(n)
    for d, m in ((1, 1), (5, 37), (40, 16), (64, 64), (33, 130)):
        k, v = (rng.standard_normal((n, x)) * scale for x in (d, m))
        k, v = k.astype(BFLOAT), v.astype(BFLOAT)
        options = {"feature_map": "identity", "normalize": False, "return_state": True}
        _, state = linattn.causal(k, k, v, **options)
        expected = by_tiles(k.T.astype("f4"), v.astype("f4"))
        np.testing.assert_array_equal(state.s, expected + np.float32(0))


@pytest.mark.parametrize("name", ISAS)
def test_no_score_of_a_later_token_is_multiplied(plain, name):
    """A NaN in a value, or a key, reaches the tokens from its own on, and no column but its own."""
    plain(name)
    options = {"feature_map": "identity", "normalize": False}
    rng = np.random.default_rng(0)
    q, k, v = rng.standard_normal((3, 130, 24)).astype(BFLOAT)
    expected = linattn.causal(q, k, v, **options)
    for t in range(130):
        wrong = v.copy()
        wrong[t, 3] = np.nan
        found = linattn.causal(q, k, wrong, **options)
        assert np.isnan(found[t:, 3].astype("f4")).all(), t
        found[t:, 3] = expected[t:, 3]
        assert found.tobytes() == expected.tobytes(), t
        wrong = k.copy()
        wrong[t] = np.nan
        found = linattn.causal(q, wrong, v, **options)
        assert np.isnan(found[t:].astype("f4")).all(), t
        assert found[:t].tobytes() == expected[:t].tobytes(), t


@pytest.mark.parametrize("name", ISAS)
def test_no_gradient_of_an_earlier_token_is_multiplied(plain, name):
    """A NaN in a cotangent reaches the gradients of values up to its own token, in its column."""
    plain(name)
    options = {"feature_map": "identity", "normalize": False}
    rng = np.random.default_rng(0)
    q, k, v, g = rng.standard_normal((4, 100, 24)).astype(BFLOAT)
    expected = linattn.causal_backward(q, k, v, g, **options)
    for t in range(100):
        wrong = g.copy()
        wrong[t, 3] = np.nan
        dq, dk, dv = linattn.causal_backward(q, k, v, wrong, **options)
        assert np.isnan(dv[: t + 1, 3].astype("f4")).all(), t
        assert np.isnan(dk[: t + 1].astype("f4")).all(), t
        assert np.isnan(dq[t].astype("f4")).all(), t
        dv[: t + 1, 3], dq[t] = expected[2][: t + 1, 3], expected[0][t]
        assert dv.tobytes() == expected[2].tobytes(), t
        assert dk[t + 1 :].tobytes() == expected[1][t + 1 :].tobytes(), t
        assert dq.tobytes() == expected[0].tobytes(), t


@pytest.mark.parametrize("name", ISAS)
def test_prefixes_have_the_same_bits(plain, name):
    """Tiles hold rows that do not exist; a row has the bits that it has among more rows."""
    plain(name)
    rng = np.random.default_rng(0)
    q, k, v = rng.standard_normal((3, 140, 40)).astype(BFLOAT)
    g = -rng.exponential(0.1, 140).astype("f4")
    whole, gated = linattn.causal(q, k, v), linattn.gated(q, k, v, g)
    for n in range(1, 140):
        assert linattn.causal(q[:n], k[:n], v[:n]).tobytes() == whole[:n].tobytes(), n
        assert linattn.gated(q[:n], k[:n], v[:n], g[:n]).tobytes() == gated[:n].tobytes(), n


@pytest.mark.parametrize("name", ISAS)
@pytest.mark.parametrize("n, d, m", [(1, 1, 1), (5, 3, 20), (70, 40, 33), (37, 130, 70)])
def test_scratch_may_hold_anything(plain, poison, name, n, d, m):
    """Rows past the last one, which tiles read."""
    plain(name)
    for case in (x for x in first_of(ATTENTION) if _linattn.operators[x.name]["products"]):
        operands = case.operands((), n, d=d, m=m, dtype=BFLOAT)
        poison(0)
        expected = [x.tobytes() for x in case.results(operands)]
        for byte in (0x7F, 0xFF):
            poison(byte)
            assert [x.tobytes() for x in case.results(operands)] == expected


@pytest.mark.parametrize("name", ISAS)
@pytest.mark.parametrize("channels", [(), (64,)], ids=["tokens", "channels"])
def test_pairs_of_the_state_follow_it(plain, name, channels):
    """After a reset, tokens read what they read alone, not the pairs made of the state before.

    These are multiplied by 0 then, which does not hide what is not finite.
    """
    plain(name)
    rng = np.random.default_rng(0)
    q, k, v = rng.standard_normal((3, 300, 64)).astype(BFLOAT)
    g = -rng.exponential(0.1, (300, *channels)).astype("f4")
    beta, g[150], v[100, 3] = np.full(300, 0.01, BFLOAT), -np.inf, np.inf
    for call, *operands in (linattn.gated, q, k, v, g), (linattn.gated_delta, q, k, v, g, beta):
        alone = call(*(x[150:] for x in operands))
        assert call(*operands)[150:].tobytes() == alone.tobytes()
