"""Products of bfloat16 operands, as an option: what changes, by how much, and what never does."""

import json
import threading

import bounds
import numpy as np
import pytest
from cases import Case
from layouts import LAYOUTS
from slow import grid
from stages import forced
from states import assert_same, flat
from table import ALL, BLOCKS, covering, first_of

import linattn
from linattn import _linattn
from linattn._core import settings
from linattn._linattn import operators

ml_dtypes = pytest.importorskip("ml_dtypes")
BFLOAT = np.dtype(ml_dtypes.bfloat16)
U8, U24 = 2.0**-8, 2.0**-24
ISAS = settings.available_isas()
SETS = [*ISAS, *(f"{x}, AMX" for x in ISAS)]
EVERY_ISA = pytest.mark.parametrize("name", SETS)


@pytest.fixture(autouse=True)
def restored():
    """The choices before the test, whatever the test leaves."""
    before, amx = linattn.get_products(), _linattn.get_amx()
    _linattn.set_amx(0)
    yield
    linattn.set_products(before)
    _linattn.set_amx(amx)


@pytest.fixture
def isa(isa):
    """Select an instruction set, and with ", AMX" the sums of AMX in plain C."""

    def select(name):
        name, _, amx = name.partition(", ")
        isa(name)
        _linattn.set_amx(2 if amx else 0)

    return select


def draw(n, d, m, lead=(), seed=0, dtype=BFLOAT):
    """q, k, v, the logarithm of a decay per token, and per channel."""
    rng = np.random.default_rng([seed, n, d, m])
    q, k = (rng.standard_normal((*lead, n, d)).astype(dtype) for _ in range(2))
    v = rng.standard_normal((*lead, n, m)).astype(dtype)
    wide = "f8" if dtype == np.dtype("f8") else "f4"
    gates = -rng.exponential(0.1, (*lead, n, d)).astype(wide)
    return q, k, v, gates[..., 0].copy(), gates


#: Those that the option affects: with each kind of gates, a bonus and blocks; and all others once.
AFFECTED = [
    x
    for x in covering(ALL + BLOCKS)
    if x.held and operators[x.name]["products"] and x.options.get("feature_map") != "l2norm"
    if "erase" not in x.letters and x.letters.get("beta") != "nm"
]
PLAIN = [x for x in AFFECTED if "block" not in x.options]
CASES = AFFECTED + [x for x in first_of(ALL) if x not in AFFECTED]


def operands_of(case, n=150, d=20, m=36, lead=(2,), dtype=BFLOAT):
    """Operands of a case; those that are held as states are have their dtype."""
    wide = "f8" if dtype == np.dtype("f8") else "f4"
    held = {x.name for x in case.row.operands if x.state_dtype} if case.row else ()
    arrays = case.operands(lead, n, s=n, d=d, m=m, dtype=dtype)
    return {x: y.astype(wide if x in held else dtype) for x, y in arrays.items()}


def calls(case, operands):
    """Calls without arguments, forward and backward; of some also by lengths and packed."""
    yield lambda: case.forward(operands) if case.held else case.call(operands)
    yield lambda: case.backward(operands)
    if case.name in ("causal", "delta", "gated_delta"):
        n = operands["q"].shape[-2]
        for more in {"key_lengths": np.array([3, n - 9])}, {"cu_seqlens": [0, 3, n // 2, n]}:
            yield lambda more=more: case.forward(operands, **more)


def with_products(name, call):
    with linattn.products(name), np.errstate(all="ignore"):
        return flat(call())


def same(x, y):
    return [a.tobytes() for a in x] == [b.tobytes() for b in y]


def test_float32_is_the_default(interpreter):
    stdout, _ = interpreter("import linattn; print(linattn.get_products())", LINATTN_PRODUCTS="")
    assert stdout.strip() == "float32"


def test_environment(interpreter):
    script = "import linattn; print(linattn.get_products())"
    stdout, _ = interpreter(script, LINATTN_PRODUCTS="bfloat16")
    assert stdout.strip() == "bfloat16"
    _, stderr = interpreter(script, LINATTN_PRODUCTS="float8", code=1)
    assert "LINATTN_PRODUCTS" in stderr
    assert "float8" in stderr


def test_context_restores():
    with linattn.products("bfloat16"):
        assert linattn.get_products() == "bfloat16"
        with pytest.raises(KeyError), linattn.products("float32"):
            assert linattn.get_products() == "float32"
            raise KeyError
        assert linattn.get_products() == "bfloat16"
    assert linattn.get_products() == "float32"
    assert linattn.products("bfloat16")(linattn.get_products)() == "bfloat16"
    assert linattn.get_products() == "float32"


@pytest.mark.parametrize("wrong", [None, 16, "float64", "bfloat16\0", ""])
def test_wrong_names(wrong):
    error = ValueError if isinstance(wrong, str) else TypeError
    with pytest.raises(error, match="set_products: name is"):
        linattn.set_products(wrong)
    with pytest.raises(error, match="set_products: name is"), linattn.products(wrong):
        pass
    assert linattn.get_products() == "float32"


def test_told(capsys, interpreter):
    linattn.set_products("bfloat16")
    linattn.show_config()
    assert "products: bfloat16" in capsys.readouterr().out
    script = "import sys, linattn.__main__ as m; sys.exit(m.main(['info', '--json']))"
    stdout, _ = interpreter(script, LINATTN_PRODUCTS="bfloat16")
    report = json.loads(stdout)
    assert report["products"] == "bfloat16"
    assert report["AVX512-BF16"] is _linattn.has_bfloat16_products


def test_a_choice_that_changes_meanwhile(threads):
    """A call finishes with the choice it started with, also where NumPy splits it."""
    threads(1)
    q, k, v, _, _ = draw(200, 32, 32, (6, 5))
    operands = [LAYOUTS["unaligned"](x) for x in (q, k[:, :1], v[:1])]
    expected = [
        with_products(x, lambda: linattn.causal(*operands)) for x in ("float32", "bfloat16")
    ]
    done = threading.Event()

    def change():
        while not done.is_set():
            linattn.set_products("bfloat16")
            linattn.set_products("float32")

    other = threading.Thread(target=change)
    other.start()
    try:
        found = [flat(linattn.causal(*operands)) for _ in range(100)]
    finally:
        done.set()
        other.join()
    assert all(any(same(x, y) for y in expected) for x in found)


@EVERY_ISA
@pytest.mark.parametrize("dtype", ["f4", "f8", "f2", BFLOAT], ids=str)
def test_what_changes(isa, name, dtype):
    """Calls on bfloat16 tokens of the operators that take the option, and no others."""
    isa(name)
    dtype = np.dtype(dtype)
    for case in CASES if dtype == BFLOAT else first_of(CASES):
        for call in calls(case, operands_of(case, dtype=dtype)):
            plain, found = with_products("float32", call), with_products("bfloat16", call)
            assert same(plain, found) != (case in AFFECTED and dtype == BFLOAT), case
            for x, y in zip(found, plain, strict=True):
                x, y = x.astype("f8"), y.astype("f8")
                bounds.close(x, y, atol=2.0**-5 * abs(y).max())


def as_operand(x):
    return x.astype("f4").astype(BFLOAT).astype("f8")


def rounded_twin(q, k, v, amx):
    """Unnormalised `causal` with rounded scores and states; integers, so that all else is exact.

    Without AMX, the scores of the four tokens around a token's own are not rounded (micro.h).
    """
    n, rows = len(q), 32 if q.shape[-1] <= 192 and not amx else 64
    s = np.zeros((q.shape[-1], v.shape[-1]))
    out = []
    for i in range(0, n, rows):
        a, b, c = (x[i : i + rows] for x in (q, k, v))
        x, at = a @ b.T, np.arange(len(a))
        own = (at[:, None] // 4 == at // 4) & (not amx)
        out.append(np.where(own, np.tril(x), np.tril(as_operand(x))) @ c + a @ as_operand(s))
        s = s + b.T @ c
    return np.concatenate(out), s


@EVERY_ISA
@pytest.mark.parametrize("d, m", [(1, 1), (3, 5), (16, 32), (33, 65), (64, 64), (129, 100)])
def test_rounded_twin(isa, name, d, m):
    isa(name)
    rng = np.random.default_rng(d)
    for n in (1, 2, 7, 31, 32, 33, 64, 65, 131):
        q = rng.integers(-3, 8, (n, d)).astype("f8")
        k, v = rng.integers(-3, 8, (n, d)).astype("f8"), rng.integers(-3, 8, (n, m)).astype("f8")
        expected, s = rounded_twin(q, k, v, "AMX" in name)
        with linattn.products("bfloat16"):
            o, state = linattn.causal(
                *(x.astype(BFLOAT) for x in (q, k, v)),
                feature_map="identity", normalize=False, return_state=True,
            )  # fmt: skip
        np.testing.assert_array_equal(o.astype("f8"), as_operand(expected))
        np.testing.assert_array_equal(state.s, s)


DRAWS = {
    "normal": lambda rng, *shape: rng.standard_normal(shape),
    "positive": lambda rng, *shape: rng.uniform(1, 2, shape),
    "nearly equal": lambda rng, *shape: 1.0039 + 1e-3 * rng.standard_normal(shape),
}


def within(found, expected, magnitude, factors, width):
    """Whether an error is that of `factors` rounded operands, of sums in float32 and of a result.

    A sum in float32 is rounded as often as `links` says, but scores in one chain (scores.h).
    """
    sums = 8 * (bounds.links(width) + width + 64) * U24
    allowed = ((1 + U8) ** factors - 1 + sums) * magnitude
    allowed += U8 * (abs(expected) + allowed) + 1e-38
    excess = bounds.excess(found.astype("f8"), expected, allowed)
    assert excess <= 1, f"{excess:.3g} times what is allowed"


@EVERY_ISA
@pytest.mark.parametrize("kind", DRAWS)
@pytest.mark.parametrize("d", [1, 16, 65, 200])
def test_error_bound(isa, name, kind, d):
    """Against float64: three rounded factors per term, or one where features are bfloat16."""
    isa(name)
    rng = np.random.default_rng(d)
    q, k, v = (DRAWS[kind](rng, 300, d).astype(BFLOAT) for _ in range(3))
    wide = [x.astype("f8") for x in (q, k, v)]
    with linattn.products("bfloat16"):
        for feature_map, normalize, factors in [
            ("identity", False, 1), ("elu", False, 3), ("elu", True, 3),
        ]:  # fmt: skip
            options = {"feature_map": feature_map, "normalize": normalize}
            o = linattn.causal(q, k, v, **options)
            expected = linattn.causal(*wide, **options)
            case = Case("causal", 300, d, d, **options)
            (size,) = bounds.evaluate(case, wide, np.float64, magnitude=True)
            within(o, expected, size, factors, d)
        for shape in ((300,), (300, d)):
            g = -rng.exponential(0.1, shape).astype("f4")
            o = linattn.gated(q, k, v, g, feature_map="identity")
            expected = linattn.gated(*wide, g.astype("f8"), feature_map="identity")
            size = linattn.gated(*map(abs, wide), g.astype("f8"), feature_map="identity")
            within(o, expected, size, 3, d)


@EVERY_ISA
@pytest.mark.parametrize("feature_map", ["identity", "l2norm"])
@pytest.mark.parametrize("operator", [linattn.delta, linattn.gated_delta])
def test_triangles_of_the_delta_rules_are_not_rounded(isa, operator, feature_map, name):
    """In the first chunk, which reads no state, outputs differ by the rounding of sums at most."""
    isa(name)
    q, k, v, g, _ = draw(16, 40, 24)
    operands = (q, k / 8, v, *[g] * (operator is linattn.gated_delta), np.ones(16, BFLOAT))
    call = lambda: operator(*operands, feature_map=feature_map)  # noqa: E731
    expected, found = (with_products(x, call)[0].astype("f8") for x in ("float32", "bfloat16"))
    bounds.close(found, expected, rtol=2 * U8, atol=0)
    assert np.mean(found == expected) > 0.97


@EVERY_ISA
@pytest.mark.parametrize("case", AFFECTED, ids=str)
def test_bits_depend_on_nothing_else(isa, threads, name, case):
    """Threads and stages."""
    isa(name)
    for call in calls(case, operands_of(case)):
        threads(1)
        expected = with_products("bfloat16", call)
        for count, chunks in ((2, 0), (5, 0), (3, 2), (2, 50)):
            threads(count)
            with forced(chunks):
                found = with_products("bfloat16", call)
            assert_same(found, expected, f"{count} threads, {chunks} chunks")


@grid(
    lambda name, width: width == 5 or (width == 64 and name == ISAS[0]),
    name=SETS,
    width=[5, 64, 130],
)
def test_layouts_and_places(isa, threads, name, width):
    """ml_dtypes has no other byte order."""
    isa(name)
    for case in first_of(AFFECTED):
        operands = operands_of(case, 80, width, 3 * width, (3,))
        run = lambda x, case=case: with_products("bfloat16", lambda: case.results(x))  # noqa: E731
        expected = run(operands)
        for layout in (x for name, x in LAYOUTS.items() if name != "byte_swapped"):
            assert_same(run({x: layout(y) for x, y in operands.items()}), expected)
        threads(8)  # one head: panels of the values
        alone = run({x: y[1:2] for x, y in operands.items()})
        assert_same(alone, [x[1:2] for x in expected])
        threads(1)
    q, k, v, *_ = draw(80, width, 3 * width, (3,))
    with linattn.products("bfloat16"):  # heads that share their keys
        shared = linattn.causal(q, k[:1], v[:1])
        for i in range(3):
            assert_same(linattn.causal(q[i], k[0], v[0]), shared[i])


@pytest.mark.parametrize("amx", ["", ", AMX"])
def test_plain_and_native_products_agree(isa, amx):
    """To the bit, where nothing else depends on the length of vectors; so do the sums of AMX."""
    names = [x + amx for x in settings.available_isas() if x in ("x86-64-v3", "x86-64-v4")]
    if len(names) < 2 or not (amx or _linattn.has_bfloat16_products):
        pytest.skip("no AVX512-BF16 here")
    q, k, v, g, _ = draw(300, 70, 70, (2,))
    found = []
    for name in names:
        isa(name)
        with linattn.products("bfloat16"):
            plain = linattn.causal(q, k, v, feature_map="identity", normalize=False)
            found.append([plain, linattn.gated(q, k, v, g, feature_map="relu")])
    assert_same(*found)


@EVERY_ISA
def test_no_nan_where_float32_has_none(isa, name):
    """Numbers that round to inf or vanish as bfloat16; the same inf; later tokens unseen."""
    isa(name)
    most = float(ml_dtypes.finfo(BFLOAT).max)
    q, k, v = np.zeros((3, 200, 3)), np.zeros((3, 200, 3)), np.zeros((3, 200, 3))
    k[:, 0, 0] = 1
    v[:, 0], v[:, 1], k[:, 1, 0] = most, 2.0**119, 1  # together they round to inf
    k[:, 2, 1], q[:, 3, 1], q[:, 4, 1] = 2.0**120, 2.0**7, 2.0**7 * (1 + 2.0**-7)
    k[1], q[1], v[1] = 1e-20, 1e-20, 3  # scores vanish
    k[2], q[2], v[2] = 1e-39, 1, 2.0**100
    q, k, v = (x.astype(BFLOAT) for x in (q, k, v))
    for options in (
        {"feature_map": "identity", "normalize": False},
        {"feature_map": "relu", "normalize": True, "eps": 0},
    ):
        (expected,) = with_products("float32", lambda o=options: linattn.causal(q, k, v, **o))
        (found,) = with_products("bfloat16", lambda o=options: linattn.causal(q, k, v, **o))
        extra = np.isnan(found.astype("f4")) & ~np.isnan(expected.astype("f4"))
        assert not extra.any(), (options, np.argwhere(extra)[:5])
    q, k, v, _, _ = draw(100, 20, 20)
    v[50:], k[70:] = np.nan, np.nan
    with linattn.products("bfloat16"):
        late = linattn.causal(q, k, v)
        whole = linattn.causal(q[:50], k[:50], v[:50])
    assert_same(late[:50], whole)


@EVERY_ISA
@pytest.mark.parametrize("case", PLAIN, ids=str)
def test_no_nan_of_sizes_far_apart(isa, name, case):
    """Tokens of 32 orders of magnitude, of which no sum overflows."""
    isa(name)
    operands = operands_of(case, 90)
    for seed in range(8):
        rng = np.random.default_rng(seed)
        far = {
            x: (operands[x] * 10.0 ** rng.choice([0, 7, -7, -20, -25], operands[x].shape,
                p=[0.6, 0.1, 0.1, 0.1, 0.1])).astype(BFLOAT)
            for x in ("qv" if "beta" in operands or "a" in operands else "qkv")  # keys stay short
        }  # fmt: skip
        for call in calls(case, operands | far):
            expected, found = with_products("float32", call), with_products("bfloat16", call)
            for x, y in zip(expected, found, strict=True):
                assert not (np.isnan(y.astype("f4")) & ~np.isnan(x.astype("f4"))).any()


@EVERY_ISA
@pytest.mark.parametrize("operator", [linattn.causal, linattn.gated])
def test_sums_of_more_than_1024_chunks_are_compensated(isa, operator, name):
    """Equal tokens, of which each chunk may be rounded the same way; chunks have up to 64."""
    isa(name)
    for n, allowed in (65536, 1024), (65600, 2):
        k, v = np.full((n, 16), 0.1, BFLOAT), np.full((n, 16), 0.7, BFLOAT)
        gated = operator is linattn.gated
        options = {"g": np.zeros(n, "f4")} if gated else {"normalize": False}
        with linattn.products("bfloat16"):
            _, (s, *_) = operator(k, k, v, feature_map="identity", return_state=True, **options)
        expected = n * float(k[0, 0]) * float(v[0, 0])
        bounds.close(s, np.full(s.shape, expected), rtol=allowed * U24, atol=0)
