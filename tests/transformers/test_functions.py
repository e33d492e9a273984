"""linattn's functions for Transformers: results, and the calls that they leave to the library."""

import itertools
import warnings

import pytest
import torch
from transformers_cases import (
    PART,
    Called,
    agree,
    close,
    errs_no_more,
    functions,
    gated_delta_operands,
    normal,
    same,
)
from transformers_models import build, module

from linattn.torch import patch_transformers


@pytest.mark.parametrize("norm", [True, False])
@pytest.mark.parametrize("state", [True, False])
@pytest.mark.parametrize("n", [1, 5, 150])
@pytest.mark.parametrize(
    "name", ["torch_chunk_gated_delta_rule", "torch_recurrent_gated_delta_rule"]
)
def test_gated_delta_rule(name, n, state, norm):
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
def test_kimi_delta_attention(name, n, state):
    operands = gated_delta_operands(n, 4, 4, channels=True)
    start = normal(2, 4, 8, 6, seed=6) if state else None
    args = [*operands, *([64] if "chunk" in name else []), start, state, True]
    same(functions("kimi_linear"), name, *args)


MAMBA = {"bias": (True, False), "softplus": (True, False), "limit": ((0.0, float("inf")), (0.1, 1))}


@pytest.mark.parametrize("state", [True, False])
@pytest.mark.parametrize("groups", [1, 2, 4])
def test_mamba2_chunk_scan(groups, state):
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


def updated(change=lambda operands: operands, groups=2, grad=False, **options):
    """The library's results and linattn's of an update, with the states that it writes to."""
    found = []
    for owner in functions("mamba2"):
        operands = change(update_operands(groups))
        x = operands[1].requires_grad_(grad)
        y = owner.mamba2_selective_state_update(*operands, **options)
        slopes = torch.autograd.grad(y.square().sum(), x) if grad else ()
        found.append((y.detach(), operands[0].detach(), *slopes))
    agree(found)


@pytest.mark.parametrize("gated", [True, False])
@pytest.mark.parametrize("groups", [1, 2, 4])
@pytest.mark.parametrize("transposed", [True, False])
@pytest.mark.parametrize("grad", [True, False])
def test_mamba2_selective_state_update(groups, gated, transposed, grad):
    """It writes to the state, however that lies in memory."""

    def change(operands):
        state, *others = operands
        return [state.mT.contiguous().mT if transposed else state, *others]

    z = normal(2, 4, 6, seed=8) if gated else None
    updated(change, groups, grad, dt_softplus=True, z=z)


@pytest.mark.parametrize("place", [2, 3, 7])
def test_decays_of_each_channel_its_own(place):
    def change(operands):
        operands[place] = operands[place] * normal(*operands[place].shape, seed=9).exp()
        return operands

    updated(change)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64], ids=str)
@pytest.mark.parametrize("activation", [None, "silu", "swish"])
def test_causal_conv1d_fn(activation, dtype):
    for n, width, bias in itertools.product((1, 3, 40), (1, 4, 7), (True, False)):
        x, weight = normal(2, 5, n, dtype=dtype), normal(5, width, seed=1, dtype=dtype)
        b = normal(5, seed=2, dtype=dtype) if bias else None
        part = PART if dtype is not torch.bfloat16 else 2**-5
        same(functions("lfm2"), "causal_conv1d_fn", x, weight, b, activation, part=part)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64], ids=str)
@pytest.mark.parametrize("grad", [True, False])
def test_causal_conv1d_update(dtype, grad):
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
        agree(found, part=part)


def test_bfloat16_errs_no_more():
    """The library's function rounds float64 to float32."""
    operands = gated_delta_operands(100, 2, 4, dtype=torch.bfloat16)
    library, ours = functions("qwen3_next")
    options = {"use_qk_l2norm_in_kernel": True, "output_final_state": True}
    owners = ours, library, ours
    errs_no_more(owners, "torch_chunk_gated_delta_rule", operands, **options)


def test_packed_states():
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


def test_whole_models_elsewhere():
    with torch.device("meta"), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        there = build("qwen3_5")
        with patch_transformers():
            assert there(torch.zeros(1, 5, dtype=torch.long)).logits.is_meta


DELTA, ONE = gated_delta_operands(3, 2, 2), [x[:1] for x in gated_delta_operands(3, 2, 2)]
SCAN = [normal(1, 3, 4, 6), normal(1, 3, 4), normal(4), normal(1, 3, 2, 8), normal(1, 3, 2, 8), 16]
X, WEIGHT, STATE = normal(1, 5, 3), normal(5, 4), normal(1, 5, 4)
BOUNDS = torch.tensor([0, 3])
NAMES = {"delta": "torch_chunk_gated_delta_rule", "scan": "mamba2_chunk_scan"}
#: Calls that are the library's: with one tensor elsewhere, keywords and forms that linattn has not.
LIBRARYS = [
    ("delta", [x.to("meta") for x in DELTA], {}),
    ("delta", DELTA, {"initial_state": torch.zeros(2, 2, 8, 6, device="meta")}),
    ("delta", [*DELTA[:4], DELTA[4].to_sparse()], {}),
    ("delta", DELTA, {"scale": 0.5}),
    ("delta", DELTA, {"head_first": False}),
    ("delta", DELTA, {"cu_seqlens": BOUNDS}),  # there are two rows
    ("delta", DELTA, {"seq_idx": torch.zeros(2, 3)}),
    ("delta", ONE, {"seq_idx": torch.tensor([[0, 1]])}),
    ("scan", SCAN, {"z": normal(1, 3, 4, 6)}),
    ("scan", SCAN, {"initial_states": normal(1, 4, 6, 8), "cu_seqlens": BOUNDS}),
    *(("causal_conv1d_fn", [X, WEIGHT, None, x], {}) for x in ("gelu", "relu")),
    *(
        ("causal_conv1d_update", [X, normal(1, 5, 4), WEIGHT, None, x], {})
        for x in ("gelu", "relu")
    ),
    ("causal_conv1d_update", [X, normal(1, 5, 2), WEIGHT], {}),  # a state shorter than the filter
]


@pytest.mark.parametrize(("name", "operands", "options"), LIBRARYS)
def test_calls_that_are_left_to_the_library(name, operands, options):
    calls = functions("qwen3_next" if name == "delta" else "mamba2")[1]
    with pytest.raises(Called):
        getattr(calls, NAMES.get(name, name))(*operands, **options)


def test_keywords():
    """Those that every part of a model is given are let pass."""
    delta = functions("qwen3_next")[1].torch_chunk_gated_delta_rule
    let_pass = {"position_ids": torch.arange(3), "max_length_q": 3, "head_first": None}
    assert torch.equal(delta(*DELTA, **let_pass)[0], delta(*DELTA)[0])
    delta(*ONE, cu_seqlens=BOUNDS)
    delta(*ONE, seq_idx=torch.tensor([[0, 1, 1]]))


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
