"""Models of Transformers run by linattn: the same results as with the library's own functions.

Weights are random and models small; nothing is downloaded.
"""

from __future__ import annotations

import functools
import importlib
import importlib.util
import inspect
import itertools
import sys
import threading
import types
import warnings
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")
pytest.importorskip("ml_dtypes")

from transformers_models import MODELS, SCANS, VOCABULARY, build, module  # noqa: E402

import linattn.torch  # noqa: E402
from linattn.torch import patch_transformers, patched  # noqa: E402
from linattn.torch.transformers import DROP_PACKING, MIX_PACKED, STAND_INS  # noqa: E402

FAMILIES = [
    family for family in MODELS if importlib.util.find_spec(f"transformers.models.{family}")
]
families = pytest.mark.parametrize("family", FAMILIES)
#: What is promised of float32: differences as a part of the largest entry.
PART = 1e-4


@pytest.fixture(scope="module")
def model():
    """Models by family, built once and left as they are."""
    return functools.cache(build)


@pytest.fixture(scope="module", autouse=True)
def _one_thread():
    """What is as small as this takes longer on two."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(autouse=True)
def _unpatched():
    assert patched() == []
    yield
    assert patched() == []


def tokens(*shape):
    return torch.randint(1, VOCABULARY, shape, generator=torch.Generator().manual_seed(1))


def close(a, b, *, part=PART, more=0.0):
    torch.testing.assert_close(a, b, rtol=0, atol=part * b.abs().max().item() + more)


class Called(Exception):
    """The library's own function is."""


def refuse(monkeypatch, family):
    """The library's own functions raise, so that nothing is left to them."""
    m = module(family)
    for name in STAND_INS:
        if not hasattr(m, name):
            continue

        @functools.wraps(getattr(m, name))
        def raises(*args, **kwargs):
            raise Called

        monkeypatch.setattr(m, name, raises)


@pytest.fixture(scope="module")
def functions():
    """Of a module, by name, the library's functions, and linattn's with none to leave a call to."""

    @functools.cache
    def both(family):
        m = module(family)
        names = [name for name in STAND_INS if hasattr(m, name)]
        library = types.SimpleNamespace(**{name: getattr(m, name) for name in names})
        with pytest.MonkeyPatch.context() as monkeypatch:
            refuse(monkeypatch, family)
            with patch_transformers():
                return library, types.SimpleNamespace(**{x: getattr(m, x) for x in names})

    return both


# --- models -------------------------------------------------------------------------------


@families
def test_logits(family, model, monkeypatch):
    """Of whole sequences, and of one that begins later."""
    ids, mask = tokens(2, 21), torch.ones(2, 21, dtype=torch.long)
    mask[1, :5] = 0
    with torch.no_grad():
        before, padded = model(family)(ids).logits, model(family)(ids, attention_mask=mask).logits
        refuse(monkeypatch, family)
        with patch_transformers():
            close(model(family)(ids).logits, before)
            after = model(family)(ids, attention_mask=mask).logits
    close(after[mask == 1], padded[mask == 1])


@families
def test_generate(family, model, monkeypatch):
    """The same tokens, by prefill and by steps on the cache."""

    def generate():
        return model(family).generate(
            tokens(2, 5), max_new_tokens=6, do_sample=False, output_logits=True,
            return_dict_in_generate=True,
        )  # fmt: skip

    before = generate()
    refuse(monkeypatch, family)
    with patch_transformers():
        after = generate()
    assert torch.equal(after.sequences, before.sequences)
    close(torch.stack(after.logits), torch.stack(before.logits))


@families
def test_gradients(family, monkeypatch):
    ids, trained = tokens(2, 21), build(family).train()

    def gradients():
        trained.zero_grad()
        trained(ids, labels=ids, use_cache=False).loss.backward()
        return {
            name: p.grad.clone() for name, p in trained.named_parameters() if p.grad is not None
        }

    before = gradients()
    refuse(monkeypatch, family)
    with patch_transformers():
        after = gradients()
    assert before.keys() == after.keys() and len(before) > 5
    # Of some parameters the library's own gradient is a small difference of large sums.
    roundings = 1e-6 * max(g.abs().max().item() for g in before.values())
    for name, g in before.items():
        close(after[name], g, more=roundings)


#: Here softmax attention looks at no position_ids to keep sequences apart.
ALL_LINEAR = {
    "granitemoehybrid": {"layer_types": ["linear_attention"] * 2},
    "glm5_next": {"text_config": {"layer_types": ["linear_attention"] * 2}},
}


@families
def test_packed_sequences(family):
    """Three sequences in a row are as each by itself; the library's own functions refuse them."""
    packed_model = build(family, **ALL_LINEAR.get(family, {}))

    def run(ids, **given):
        return packed_model(ids, use_cache=False, **given)[0]

    ids, ends = tokens(1, 21), [0, 4, 5, 21]
    lengths = [b - a for a, b in itertools.pairwise(ends)]
    packed = {
        "cu_seq_lens_q": torch.tensor(ends, dtype=torch.int32),
        "cu_seq_lens_k": torch.tensor(ends, dtype=torch.int32),
        "max_length_q": 16,
        "max_length_k": 16,
        "position_ids": torch.cat([torch.arange(n) for n in lengths])[None],
    }
    if family == "mamba2":
        del packed["position_ids"]
    index = torch.cat([torch.full((1, n), i) for i, n in enumerate(lengths)], 1).int()
    with torch.no_grad():
        apart = torch.cat([run(x) for x in ids.split(lengths, 1)], 1)
        if family not in ("mamba2", "minimax"):  # which mix them without a word
            with pytest.raises(ValueError, match="can't keep packed sequences apart"):
                run(ids, seq_idx=index, **packed)
        with patch_transformers():
            close(run(ids, seq_idx=index, **packed), apart)
            close(run(ids, **packed), apart)
    with patch_transformers():  # where Mamba-2 asks for a fused form first
        close(packed_model.train()(ids, seq_idx=index, use_cache=False, **packed)[0], apart)


@pytest.mark.parametrize("family", SCANS)
@pytest.mark.parametrize("packing", ["cu_seq_lens_q", "seq_idx"])
def test_packed_sequences_that_a_scan_mixes(family, packing):
    """Where the scan is the library's, several sequences in a row are refused, and one is not."""
    m = build(family)
    ids = tokens(1, 5)
    several = {"cu_seq_lens_q": torch.tensor([0, 2, 5]), "seq_idx": torch.tensor([[0, 0, 1, 1, 1]])}
    one = {"cu_seq_lens_q": torch.tensor([0, 5]), "seq_idx": torch.zeros(1, 5, dtype=torch.int32)}
    with torch.no_grad(), patch_transformers():
        with pytest.raises(ValueError, match="does not separate"):
            m(ids, use_cache=False, **{packing: several[packing]})
        close(m(ids, use_cache=False, **{packing: one[packing]})[0], m(ids, use_cache=False)[0])


def test_packed_sequences_in_several_rows(functions):
    """The library's functions do not look at cu_seq_lens_q: they would mix the sequences."""
    delta = functions("qwen3_next")[1].torch_chunk_gated_delta_rule
    operands = gated_delta_operands(3, 2, 2)
    with pytest.raises(ValueError, match="cu_seq_lens_q is given for 2 rows"):
        delta(*operands, cu_seq_lens_q=torch.tensor([0, 3, 6]))


@families
def test_bfloat16(family, monkeypatch):
    half = build(family).to(torch.bfloat16)
    refuse(monkeypatch, family)
    with patch_transformers():
        loss = half(tokens(2, 21), labels=tokens(2, 21)).loss
        loss.backward()
        assert loss.isfinite()
        for name, p in half.named_parameters():
            assert p.grad is None or p.grad.isfinite().all(), name
        ids = half.generate(tokens(1, 5), max_new_tokens=3, do_sample=False)
    assert ids.shape == (1, 8)


@pytest.mark.parametrize("family", ["qwen3_5", "kimi_linear", "mamba2"])
def test_autocast(family, model):
    """Products are of 16 bits then, in the library's functions and in linattn's."""

    def loss():
        with torch.autocast("cpu", torch.bfloat16), torch.no_grad():
            return model(family)(tokens(2, 9), labels=tokens(2, 9), use_cache=False).loss

    before = loss()
    with patch_transformers(), torch.autocast("cpu", torch.bfloat16):
        close(loss(), before, part=2**-7)
        model(family).generate(tokens(1, 5), max_new_tokens=3, do_sample=False)


# --- functions ------------------------------------------------------------------------------


def normal(*shape, dtype=torch.float32, seed=0):
    x = torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    return x.to(dtype)


def same(pair, name, *args, part=PART, **kwargs):
    """The results of a function and its stand-in, and the gradients of operands."""

    def call(owner):
        given = [
            x.clone().requires_grad_() if isinstance(x, torch.Tensor) and x.is_floating_point()
            else x for x in args
        ]  # fmt: skip
        out = getattr(owner, name)(*given, **kwargs)
        out = [x for x in (out if isinstance(out, tuple) else (out,)) if x is not None]
        loss = sum((x.float() * normal(*x.shape, seed=9)).sum() for x in out)
        inputs = [x for x in given if isinstance(x, torch.Tensor) and x.requires_grad]
        grads = torch.autograd.grad(loss, inputs, allow_unused=True)
        return [x.detach() for x in out], [x for x in grads if x is not None]

    (before, slopes), (after, ours) = map(call, pair)
    assert len(before) == len(after) and len(slopes) == len(ours)
    for a, b in zip(after + ours, before + slopes, strict=True):
        assert a.shape == b.shape and a.dtype is b.dtype
        close(a, b, part=part)


def gated_delta_operands(n, heads, values, *, channels=False, dtype=torch.float32):
    """q, k of 8 channels, v of 6, a gate and beta."""
    shape = (2, n, values, *([8] if channels else []))
    return [
        normal(2, n, heads, 8, seed=1, dtype=dtype), normal(2, n, heads, 8, seed=2, dtype=dtype),
        normal(2, n, values, 6, seed=3, dtype=dtype), -normal(*shape, seed=4).exp() / 4,
        normal(2, n, values, seed=5, dtype=dtype).sigmoid(),
    ]  # fmt: skip


@pytest.mark.parametrize("norm", [True, False])
@pytest.mark.parametrize("state", [True, False])
@pytest.mark.parametrize("n", [1, 5, 150])
@pytest.mark.parametrize(
    "name", ["torch_chunk_gated_delta_rule", "torch_recurrent_gated_delta_rule"]
)
def test_gated_delta_rule(name, n, state, norm, functions):
    for heads, values in ((2, 2), (2, 6)):
        operands = gated_delta_operands(n, heads, values)
        if not norm:
            operands[:2] = [x / 4 for x in operands[:2]]
        start = normal(2, values, 8, 6, seed=6) if state else None
        options = {"use_qk_l2norm_in_kernel": norm, "output_final_state": state}
        args = [*operands, *([64] if "chunk" in name else []), start]
        same(functions("qwen3_next"), name, *args, **options)


@pytest.mark.parametrize("state", [True, False])
@pytest.mark.parametrize("n", [1, 70])
@pytest.mark.parametrize("name", ["chunk_kimi_delta_attention", "recurrent_kimi_delta_attention"])
def test_kimi_delta_attention(name, n, state, functions):
    operands = gated_delta_operands(n, 4, 4, channels=True)
    start = normal(2, 4, 8, 6, seed=6) if state else None
    args = [*operands, *([64] if "chunk" in name else []), start, state, True]
    same(functions("kimi_linear"), name, *args)


MAMBA = {"bias": (True, False), "softplus": (True, False), "limit": ((0.0, float("inf")), (0.1, 1))}


@pytest.mark.parametrize("state", [True, False])
@pytest.mark.parametrize("groups", [1, 2, 4])
def test_mamba2_chunk_scan(groups, state, functions):
    for bias, softplus, limit in itertools.product(*MAMBA.values()):
        dt = normal(2, 50, 4, seed=2)
        same(
            functions("mamba2"), "mamba2_chunk_scan",
            normal(2, 50, 4, 6), dt if softplus else dt.exp(), -normal(4, seed=3).exp(),
            normal(2, 50, groups, 8, seed=4), normal(2, 50, groups, 8, seed=5), 16,
            normal(4, seed=6) if bias else None, normal(4, seed=7) if bias else None,
            normal(2, 4, 6, 8, seed=8) if state else None,
            dt_softplus=softplus, dt_limit=limit, return_final_states=state,
        )  # fmt: skip


def update_operands(groups, *, dtype=torch.float32):
    """State, x, dt, A, B, C, D and dt_bias as models give them, repeated."""
    heads, p, n = 4, 6, 8
    return [
        normal(2, heads, p, n), normal(2, heads, p, seed=1, dtype=dtype),
        normal(2, heads, 1, seed=2, dtype=dtype).expand(-1, -1, p),
        (-normal(heads, 1, 1, seed=3).exp()).expand(-1, p, n),
        normal(2, groups, n, seed=4, dtype=dtype), normal(2, groups, n, seed=5, dtype=dtype),
        normal(heads, 1, seed=6, dtype=dtype).expand(-1, p),
        normal(heads, 1, seed=7, dtype=dtype).expand(-1, p),
    ]  # fmt: skip


@pytest.mark.parametrize("gated", [True, False])
@pytest.mark.parametrize("groups", [1, 2, 4])
@pytest.mark.parametrize("transposed", [True, False])
def test_mamba2_selective_state_update(groups, gated, transposed, functions):
    """It writes to the state, however that lies in memory."""
    z, found = normal(2, 4, 6, seed=8) if gated else None, []
    for owner in functions("mamba2"):
        state, *rest = update_operands(groups)
        if transposed:
            state = state.mT.contiguous().mT
        y = owner.mamba2_selective_state_update(state, *rest, dt_softplus=True, z=z)
        found.append((y, state))
    for a, b in zip(*found, strict=True):
        close(a, b)


def test_mamba2_update_with_gradients(functions):
    found = []
    for owner in functions("mamba2"):
        state, x, *rest = update_operands(2)
        x.requires_grad_()
        y = owner.mamba2_selective_state_update(state, x, *rest, dt_softplus=True)
        y.square().sum().backward()
        found.append((y.detach(), state.detach(), x.grad))
    for a, b in zip(*found, strict=True):
        close(a, b)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64], ids=str)
@pytest.mark.parametrize("activation", [None, "silu", "swish"])
def test_causal_conv1d_fn(activation, dtype, functions):
    for n, width, bias in itertools.product((1, 3, 40), (1, 4, 7), (True, False)):
        x, weight = normal(2, 5, n, dtype=dtype), normal(5, width, seed=1, dtype=dtype)
        b = normal(5, seed=2, dtype=dtype) if bias else None
        part = PART if dtype is not torch.bfloat16 else 2**-5
        same(functions("lfm2"), "causal_conv1d_fn", x, weight, b, activation, part=part)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64], ids=str)
@pytest.mark.parametrize("grad", [True, False])
def test_causal_conv1d_update(dtype, grad, functions):
    """The state, of the filter's width or another, goes on with the tokens."""
    part = PART if dtype is not torch.bfloat16 else 2**-5
    shapes = (1, 3), ((4, 0), (4, 1), (4, 3), (2, 0), (1, 1), (1, 2))
    for n, (width, more), activation in itertools.product(*shapes, (None, "silu")):
        x, weight = normal(2, 5, n, dtype=dtype), normal(5, width, seed=1, dtype=dtype)
        bias, found = normal(5, seed=2, dtype=dtype), []
        weight.requires_grad_(grad)
        for owner in functions("lfm2"):
            state = normal(2, 5, width - 1 + more, seed=3, dtype=dtype)
            y = owner.causal_conv1d_update(x, state, weight, bias, activation)
            slopes = torch.autograd.grad(y.sum(), weight) if grad else ()
            found.append((y.detach(), state, *slopes))
        for a, b in zip(*found, strict=True):
            assert a.shape == b.shape and a.dtype is b.dtype
            close(a, b, part=part)


def test_bfloat16_errs_no_more(functions):
    """Than the library's functions do, against the same in float64."""
    q, k, v, g, beta = gated_delta_operands(100, 2, 4, dtype=torch.bfloat16)
    library, ours = functions("qwen3_next")
    found = [
        owner.torch_chunk_gated_delta_rule(
            *operands, use_qk_l2norm_in_kernel=True, output_final_state=True
        )
        for owner, operands in (
            (ours, [x.double() for x in (q, k, v, g, beta)]),
            (library, [q, k, v, g, beta]),
            (ours, [q, k, v, g, beta]),
        )
    ]
    assert found[2][0].dtype is torch.bfloat16 and found[2][1].dtype is torch.float32
    for truth, theirs, mine in zip(*found, strict=True):
        assert (mine - truth).abs().max() <= 1.5 * (theirs - truth).abs().max()


def test_packed_states(functions):
    """One a sequence, as the library's GPU kernels have them; Mamba-2's is that after the last."""
    ends = torch.tensor([0, 4, 20, 50])
    delta = functions("qwen3_next")[1].torch_chunk_gated_delta_rule
    operands = [x[:1] for x in gated_delta_operands(50, 2, 4)]
    start = normal(3, 4, 8, 6)
    o, state = delta(*operands, initial_state=start, output_final_state=True, cu_seqlens=ends)
    for i, (a, b) in enumerate(itertools.pairwise(ends.tolist())):
        alone = delta(
            *(x[:, a:b] for x in operands), initial_state=start[i : i + 1], output_final_state=True
        )
        close(o[:, a:b], alone[0])
        close(state[i : i + 1], alone[1])
    scan = functions("mamba2")[1].mamba2_chunk_scan
    x, dt, A = normal(1, 50, 4, 6), normal(1, 50, 4), -normal(4).exp()
    B, C = normal(1, 50, 2, 8), normal(1, 50, 2, 8, seed=1)
    index = torch.repeat_interleave(torch.arange(3), ends.diff())[None]
    options = {"dt_softplus": True, "return_final_states": True}
    o, state = scan(x, dt, A, B, C, 16, seq_idx=index, **options)
    alone = scan(x[:, 20:], dt[:, 20:], A, B[:, 20:], C[:, 20:], 16, **options)
    close(o[:, 20:], alone[0])
    close(state, alone[1])


# --- what is left to the library ---------------------------------------------------------------


def test_other_devices(functions):
    """One tensor elsewhere is enough."""
    delta = functions("qwen3_next")[1].torch_chunk_gated_delta_rule
    operands = gated_delta_operands(3, 2, 2)
    delta(*operands)
    with pytest.raises(Called):
        delta(*(x.to("meta") for x in operands))
    with pytest.raises(Called):
        delta(*operands, initial_state=torch.zeros(2, 2, 8, 6, device="meta"))
    with pytest.raises(Called):
        delta(*operands[:4], operands[4].to_sparse())


def test_whole_models_elsewhere():
    with torch.device("meta"), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        there = build("qwen3_5")
        with patch_transformers():
            assert there(torch.zeros(1, 5, dtype=torch.long)).logits.is_meta


def test_keywords(functions):
    """Those that every part of a model is given are let pass; others are the library's."""
    delta = functions("qwen3_next")[1].torch_chunk_gated_delta_rule
    operands = gated_delta_operands(3, 2, 2)
    o, _ = delta(*operands)
    let_pass = {"position_ids": torch.arange(3), "max_length_q": 3, "head_first": None}
    assert torch.equal(delta(*operands, **let_pass)[0], o)
    for more in (
        {"scale": 0.5},
        {"head_first": False},
        {"cu_seqlens": torch.tensor([0, 3])},
        {"seq_idx": torch.zeros(2, 3)},
    ):
        with pytest.raises(Called):  # there are two rows
            delta(*operands, **more)
    one = [x[:1] for x in operands]
    delta(*one, cu_seqlens=torch.tensor([0, 3]))
    delta(*one, seq_idx=torch.tensor([[0, 1, 1]]))
    with pytest.raises(Called):
        delta(*one, seq_idx=torch.tensor([[0, 1]]))


def test_forms_that_linattn_has_not(functions):
    calls = functions("mamba2")[1]
    x, weight = normal(1, 5, 3), normal(5, 4)
    for activation in ("gelu", "relu"):
        with pytest.raises(Called):
            calls.causal_conv1d_fn(x, weight, None, activation)
        with pytest.raises(Called):
            calls.causal_conv1d_update(x, normal(1, 5, 4), weight, None, activation)
    with pytest.raises(Called):  # a state shorter than the filter
        calls.causal_conv1d_update(x, normal(1, 5, 2), weight)
    operands = update_operands(2)
    calls.mamba2_selective_state_update(*operands)
    for i in (2, 3, 7):  # decays of each channel its own
        theirs = [y.clone() if j == i else y for j, y in enumerate(operands)]
        with pytest.raises(Called):
            calls.mamba2_selective_state_update(*theirs)
    scan = [normal(1, 3, 4, 6), normal(1, 3, 4), normal(4), normal(1, 3, 2, 8), normal(1, 3, 2, 8)]
    with pytest.raises(Called):
        calls.mamba2_chunk_scan(*scan, 16, z=normal(1, 3, 4, 6))
    with pytest.raises(Called):
        calls.mamba2_chunk_scan(
            *scan, 16, initial_states=normal(1, 4, 6, 8), cu_seqlens=torch.tensor([0, 3])
        )


def test_export_and_compile():
    """Exported programs have nothing of linattn's in them; compiled ones do."""
    m = module("qwen3_next")

    class Module(torch.nn.Module):
        def forward(self, *operands):
            return m.torch_chunk_gated_delta_rule(*operands, use_qk_l2norm_in_kernel=True)[0]

    operands = tuple(gated_delta_operands(10, 2, 4))
    with patch_transformers(), torch.no_grad():
        expected = Module()(*operands)
        program = torch.export.export(Module(), operands)
        assert not any("linattn" in str(node.target) for node in program.graph.nodes)
        close(program.module()(*operands), expected)
        compiled = torch.compile(Module(), backend="aot_eager", fullgraph=True)
        close(compiled(*operands), expected)
    torch._dynamo.reset()


# --- patching --------------------------------------------------------------------------------


REPLACED = [*STAND_INS, *(f"{name}.forward" for name in (*DROP_PACKING, *MIX_PACKED))]


def everything():
    """Every module and function that has a stand-in, by a look at the library's sources."""
    folder = Path(transformers.__file__).parent / "models"
    for file in sorted(folder.glob("*/modeling_*.py")):
        text = file.read_text()
        for name in REPLACED:
            head, _, method = name.partition(".")
            if f"\ndef {head}(" in text or (method and f"\nclass {head}(" in text):
                yield f"transformers.models.{file.parent.name}.{file.stem}.{name}"


def test_everything_is_patched_and_given_back():
    names = list(everything())
    assert len(names) > 60
    modules = {
        importlib.import_module(
            name.partition(".modeling")[0]
            + ".modeling"
            + name.partition(".modeling")[2].split(".")[0]
        )
        for name in names
    }
    before = {m: dict(vars(m)) for m in modules}
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        patch = patch_transformers()
    assert patched() == sorted(set(names))
    assert repr(patch) == f"<{len(names)} functions of transformers run on linattn>"
    for m in modules:
        assert {name for name, x in vars(m).items() if x is not before[m][name]} == {
            name for name in STAND_INS if name in before[m]
        }
    patch.undo()
    patch.undo()
    assert patched() == []
    for m in modules:
        assert all(x is before[m][name] for name, x in vars(m).items())


def test_with_statement():
    m = module("qwen3_next")
    own = m.torch_chunk_gated_delta_rule
    with patch_transformers():
        assert m.torch_chunk_gated_delta_rule is not own
    assert m.torch_chunk_gated_delta_rule is own
    with pytest.raises(KeyError), patch_transformers():
        raise KeyError
    assert m.torch_chunk_gated_delta_rule is own


def test_twice():
    """An inner context leaves what was patched before it; undo() of any call gives all back."""
    m = module("qwen3_next")
    own = m.torch_chunk_gated_delta_rule
    patch_transformers()
    ours = m.torch_chunk_gated_delta_rule
    again = patch_transformers()
    assert m.torch_chunk_gated_delta_rule is ours
    with patch_transformers():
        pass
    assert m.torch_chunk_gated_delta_rule is ours
    again.undo()
    assert m.torch_chunk_gated_delta_rule is own


def test_threads():
    """The first of two threads to leave its context leaves the other's functions patched."""
    m = module("qwen3_next")
    own = m.torch_chunk_gated_delta_rule
    entered, left = threading.Event(), threading.Event()

    def other():
        with patch_transformers():
            entered.set()
            assert left.wait(60)
            return m.torch_chunk_gated_delta_rule is not own

    with ThreadPoolExecutor(1) as pool:
        with patch_transformers():
            result = pool.submit(other)
            assert entered.wait(60)
        left.set()
        assert result.result()
    assert m.torch_chunk_gated_delta_rule is own
    with patch_transformers() as patch, patch:
        patch_transformers().undo()
        assert m.torch_chunk_gated_delta_rule is not own
    assert m.torch_chunk_gated_delta_rule is own


def test_what_others_put_there_stays():
    m = module("qwen3_next")
    own = m.torch_chunk_gated_delta_rule
    try:
        with patch_transformers():
            m.torch_chunk_gated_delta_rule = test_with_statement
            assert f"{m.__name__}.torch_chunk_gated_delta_rule" not in patched()
        assert m.torch_chunk_gated_delta_rule is test_with_statement
    finally:
        m.torch_chunk_gated_delta_rule = own


@pytest.mark.parametrize("name", [name for name in STAND_INS if "." not in name])
def test_signatures(name, functions):
    """All arguments of the library's function are named, with its defaults."""
    theirs, ours = (
        {
            x.name: (x.kind, x.default)
            for x in inspect.signature(getattr(owner, name)).parameters.values()
        }
        for owner in functions(next(x for x in FAMILIES if hasattr(module(x), name)))
    )
    assert {x: y for x, y in ours.items() if y[0] is not inspect.Parameter.KEYWORD_ONLY} == theirs


def test_another_signature_is_left_alone(monkeypatch):
    fake = types.ModuleType("transformers.models.fake.modeling_fake")
    good = module("qwen3_next")
    fake.causal_conv1d_fn = good.causal_conv1d_fn

    def causal_conv1d_update(hidden_states, conv_state, weight, bias=None, activation="silu"):
        pass

    def torch_chunk_gated_delta_rule(query, key, value, g, beta, *, scale=None):
        pass

    class MiniMaxLightningAttention:
        forward = module("minimax").MiniMaxModel.forward

    for thing in (causal_conv1d_update, torch_chunk_gated_delta_rule, MiniMaxLightningAttention):
        setattr(fake, thing.__name__, thing)
    fake.mamba2_chunk_scan = None
    monkeypatch.setitem(sys.modules, fake.__name__, fake)
    before = dict(vars(fake))
    with pytest.warns(UserWarning) as warned, patch_transformers():
        assert vars(fake)["causal_conv1d_fn"] is not before["causal_conv1d_fn"]
        for name in before.keys() - {"causal_conv1d_fn"}:
            assert vars(fake)[name] is before[name]
    with warnings.catch_warnings(), pytest.raises(UserWarning):
        warnings.simplefilter("error")
        patch_transformers()
    assert patched() == []
    assert {w.filename for w in warned} == {__file__}
    texts = [str(w.message) for w in warned]
    assert len(texts) == 3
    for name in (
        "causal_conv1d_update",
        "torch_chunk_gated_delta_rule",
        "MiniMaxLightningAttention.forward",
    ):
        (text,) = (x for x in texts if f"{fake.__name__}.{name}" in x)
        assert f"transformers {transformers.__version__}" in text and "left as it is" in text


def test_functions_as_modules(monkeypatch):
    """As they are where the package kernels is installed."""
    fake = types.ModuleType("transformers.models.fake.modeling_fake")
    function = module("lfm2").causal_conv1d_fn

    class Function(torch.nn.Module):
        def forward(self, hidden_states, weight, bias=None, activation=None, **kwargs):
            return function(hidden_states, weight, bias, activation, **kwargs)

    fake.causal_conv1d_fn = before = Function()
    monkeypatch.setitem(sys.modules, fake.__name__, fake)
    with patch_transformers():
        assert f"{fake.__name__}.causal_conv1d_fn" in patched()
        x, weight = normal(1, 5, 3), normal(5, 4)
        for activation in ("silu", "gelu"):  # linattn's, and the library's
            close(
                fake.causal_conv1d_fn(x, weight, None, activation),
                before(x, weight, None, activation),
            )
    assert fake.causal_conv1d_fn is before


def test_another_body_of_a_method_is_left_alone(monkeypatch):
    attention = module("minimax").MiniMaxLightningAttention

    def forward(
        self, hidden_states, position_embeddings, attention_mask, past_key_values=None, **kwargs
    ):
        pass

    monkeypatch.setattr(attention, "forward", forward)
    with pytest.warns(UserWarning, match="has been changed"), patch_transformers():
        assert attention.forward is forward


LATER = """
import sys
import linattn.torch
patch = linattn.torch.patch_transformers()
assert linattn.torch.patched() == []
assert not [x for x in sys.modules if x.startswith("transformers.models.")]
from transformers.models.lfm2 import modeling_lfm2 as m
names = ["causal_conv1d_fn", "causal_conv1d_update"]
assert linattn.torch.patched() == [f"{m.__name__}.{x}" for x in names]
assert type(m.__loader__).__name__ == type(m.__spec__.loader).__name__ == "SourceFileLoader"
ours = m.causal_conv1d_fn
patch.undo()
assert linattn.torch.patched() == [] and m.causal_conv1d_fn is not ours
from transformers import Mamba2ForCausalLM
assert linattn.torch.patched() == []
patch = linattn.torch.patch_transformers()
assert len(linattn.torch.patched()) == 8
import importlib
importlib.reload(m)
assert len(linattn.torch.patched()) == 8 and m.causal_conv1d_fn is not ours
patch.undo()
assert linattn.torch.patched() == []
"""


def test_modules_imported_later(interpreter):
    """No model is imported for it, and nothing is printed."""
    out, err = interpreter(LATER, PYTHONPATH=str(Path(linattn.__file__).parents[1]))
    assert out == "" and "linattn" not in err


def test_nothing_is_printed(capfd):
    with patch_transformers() as patch:
        patched()
    patch.undo()
    assert capfd.readouterr() == ("", "")


def test_without_transformers(monkeypatch):
    monkeypatch.setitem(sys.modules, "transformers", None)
    with pytest.raises(ImportError, match=r"pip install 'linattn\[transformers\]'"):
        patch_transformers()
