"""The layers and language models of the stand-in for mamba_ssm: weights, results, generation."""

import itertools

import pytest
import torch
from mamba_cases import agree, errors
from mamba_layers import (
    BATCH,
    FIRST_TWO,
    LAYERS,
    MAMBA2,
    MAMBA3,
    OF_MAMBA3,
    WIDTH,
    N,
    generated,
    made,
    tokens,
)

from linattn.torch.mamba_ssm import Mamba, Mamba2, MambaLMHeadModel
from linattn.torch.mamba_ssm.models.config_mamba import MambaConfig
from linattn.torch.mamba_ssm.ops.triton.ssd_combined import (
    mamba_split_conv1d_scan_combined,
)
from linattn.torch.mamba_ssm.utils.generation import (
    InferenceParams,
    decode,
    sample,
)

EACH_LAYER = pytest.mark.parametrize("name", LAYERS)


@EACH_LAYER
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
@pytest.mark.parametrize("prompt", [1, 2, 6])
def test_steps_continue_a_sequence(name, dtype, prompt):
    layer, x = made(name, dtype), tokens(dtype)
    with torch.no_grad():
        assert agree(generated(layer, x, prompt), layer(x), torch.float32)


@EACH_LAYER
@pytest.mark.parametrize(("batch", "n"), [(3, 0), (0, 5)])
def test_nothing_to_do(name, batch, n):
    layer, x = made(name), tokens(batch=batch, n=n).requires_grad_()
    y = layer(x)
    assert y.shape == x.shape
    y.sum().backward()
    state = InferenceParams(max_seqlen=N, max_batch_size=batch)
    assert layer(x, inference_params=state).shape == x.shape
    assert not any(z.any() for z in state.key_value_memory_dict[0])  # as new ones


@EACH_LAYER
def test_steps_from_an_allocated_cache(name):
    layer, x = made(name), tokens()
    states, outputs = layer.allocate_inference_cache(BATCH, N), []
    memory = [y.data_ptr() for y in states]
    with torch.no_grad():
        for i in range(N):
            if name in OF_MAMBA3:
                y, *after = layer.step(x[:, i], *states, ignored=True)
            else:
                y, *after = layer.step(x[:, i : i + 1], *states)
            assert all(a is b for a, b in zip(after, states, strict=True))
            outputs.append(y.view(BATCH, 1, WIDTH))
        assert agree(torch.cat(outputs, 1), layer(x), torch.float32)
    assert [y.data_ptr() for y in states] == memory
    if name not in OF_MAMBA3:
        assert layer.allocate_inference_cache(3, N, torch.bfloat16)[1].dtype is torch.bfloat16


@pytest.mark.parametrize("name", FIRST_TWO)
def test_gradients_of_steps_are_those_of_the_sequence(name):
    layer, x = made(name), tokens(n=3)
    states, parts = layer.allocate_inference_cache(BATCH, N), []
    for i in range(3):
        y, *states = layer.step(x[:, i : i + 1], *(z.clone() for z in states))
        parts.append(y)
    parameters = [*layer.parameters()]
    found = torch.autograd.grad(torch.cat(parts, 1).square().sum(), parameters)
    known = torch.autograd.grad(layer(x).square().sum(), parameters)
    assert all(agree(g, k, torch.float32) for g, k in zip(found, known, strict=True))


@pytest.mark.parametrize("name", [x for x in LAYERS if x.startswith("Mamba2")])
def test_mamba2_is_the_block_of_its_function(name):
    layer, x = made(name), tokens(n=7)
    seq_idx = torch.tensor([[0, 0, 1, 1, 1, 2, 2]] * BATCH, dtype=torch.int32)
    D = layer.D.unflatten(0, (-1, layer.headdim)) if layer.D_has_hdim else layer.D
    known = mamba_split_conv1d_scan_combined(
        layer.in_proj(x), layer.conv1d.weight.squeeze(1), layer.conv1d.bias, layer.dt_bias,
        -layer.A_log.float().exp(), D, 256, None, seq_idx, layer.dt_limit, False, "silu",
        layer.norm.weight if layer.rmsnorm else None, 1e-5, layer.out_proj.weight,
        layer.out_proj.bias, layer.headdim, layer.ngroups, layer.norm_before_gate,
    )  # fmt: skip
    assert agree(layer(x, seq_idx=seq_idx), known, torch.float64)
    flat = layer(x.flatten(0, 1), seqlen=7, seq_idx=seq_idx)
    assert torch.equal(flat, layer(x, seq_idx=seq_idx).flatten(0, 1))


#: A layer, bounds and, for Mamba-2, numbers of the sequences, which may be padded.
PACKED = [
    *(("Mamba2, others", *x) for x in (([0, 2, 3, 7], [0, 0, 1, 2, 2, 2, 2]),
                                       ([0, 2, 3, 5], [0, 0, 1, 2, 2, -1, -1]),
                                       ([0, 2, 3, 5], [0, 0, 1, 2, 2, 3, 3]))),
    *((x, [0, 4, 4, 5, 9], None) for x in OF_MAMBA3),
]  # fmt: skip


@pytest.mark.parametrize(("name", "bounds", "numbers"), PACKED)
@pytest.mark.parametrize("dtype", [torch.int32, torch.int64])
def test_packed_prompts_are_continued(name, bounds, numbers, dtype):
    count, rounded = len(bounds) - 1, torch.float32 if numbers else torch.float64
    layer, x, new = made(name), tokens(batch=1, n=7 if numbers else 9), tokens(batch=count, n=1)
    given = {"seq_idx": torch.tensor([numbers], dtype=torch.int32)} if numbers else {}
    state = InferenceParams(max_seqlen=N, max_batch_size=count)
    with torch.no_grad():
        cu_seqlens = torch.tensor(bounds, dtype=dtype)
        packed = layer(x, cu_seqlens=cu_seqlens, inference_params=state, **given)
        state.seqlen_offset = 1
        after = layer(new, inference_params=state)
        for i, (begin, end) in enumerate(itertools.pairwise(bounds)):
            alone = layer(torch.cat([x[:, begin:end], new[i : i + 1]], 1))
            assert end == begin or agree(packed[:, begin:end], alone[:, :-1], rounded)
            assert agree(after[i : i + 1], alone[:, -1:], rounded)


def test_new_parameters():
    layer = Mamba(WIDTH, dt_min=0.01, dt_max=0.02, dtype=torch.bfloat16)
    assert layer.A_log.dtype is layer.D.dtype is torch.float32
    assert torch.allclose(layer.A_log.exp(), torch.arange(1.0, 17), rtol=1e-6, atol=0)
    dt = torch.nn.functional.softplus(layer.dt_proj.bias.float())
    assert dt.min() > 0.0099 and dt.max() < 0.0201  # bfloat16 rounds the bias by 0.4 %
    assert layer.dt_proj.bias._no_reinit and layer.A_log._no_weight_decay
    layer = Mamba2(WIDTH, **MAMBA2, A_init_range=(2, 3), dt_init_floor=0.05)
    assert layer.A_log.exp().min() >= 2 and layer.A_log.exp().max() <= 3.0001
    assert torch.nn.functional.softplus(layer.dt_bias).min() > 0.0499
    assert layer.D._no_weight_decay and layer.dt_bias._no_weight_decay


VOCABULARY = 21
CONFIGURATIONS = {
    "Mamba": {},
    "Mamba-2, MLP": {"ssm_cfg": {"layer": "Mamba2", **MAMBA2}, "d_intermediate": 20},
    "Mamba-3": {"ssm_cfg": {"layer": "Mamba3", **MAMBA3}},
    "Mamba-3, MIMO": {"ssm_cfg": {"layer": "Mamba3", **MAMBA3, "is_mimo": True, "mimo_rank": 2}},
    "layer norm": {"rms_norm": False, "tie_embeddings": False, "residual_in_fp32": False},
    "not fused": {"fused_add_norm": False, "d_intermediate": 20},
}
EACH_MODEL = pytest.mark.parametrize("name", CONFIGURATIONS)


def model_of(name, dtype=torch.float32):
    torch.manual_seed(0)
    config = MambaConfig(d_model=WIDTH, n_layer=2, vocab_size=VOCABULARY, **CONFIGURATIONS[name])
    return MambaLMHeadModel(config, dtype=dtype)


PROMPT = torch.tensor([[1, 2, 3, 4], [5, 6, 7, 8]])


@EACH_MODEL
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_generation_is_recomputation(name, dtype):
    model = model_of(name, dtype)
    out = model.generate(PROMPT, 10, cg=True, output_scores=True, return_dict_in_generate=True)
    with torch.no_grad():
        logits = model(out.sequences).logits
    assert logits.shape == (2, 10, 24)  # the vocabulary, rounded up
    scores = torch.stack(out.scores, 1)
    unit = torch.finfo(dtype).eps  # layers round their tokens and states
    assert torch.allclose(scores.float(), logits[:, 3:-1].float(), rtol=0, atol=32 * unit)
    assert torch.equal(out.sequences[:, 4:], scores.argmax(-1))
    assert torch.equal(out.sequences, model.generate(PROMPT, 10))


@EACH_MODEL
def test_training(name):
    model = model_of(name)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    text = torch.arange(40).view(2, 20) % VOCABULARY
    losses = []
    for _ in range(20):
        logits = model(text[:, :-1]).logits
        loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), text[:, 1:].flatten())
        optimizer.zero_grad()
        loss.backward()
        assert all(x.grad is not None for x in model.parameters())
        optimizer.step()
        losses.append(loss.item())
    assert losses[-1] < 0.7 * losses[0]


def test_saved_models_load(tmp_path):
    model = model_of("Mamba", torch.bfloat16)
    model.save_pretrained(str(tmp_path))
    again = MambaLMHeadModel.from_pretrained(str(tmp_path), dtype=torch.bfloat16)
    assert torch.equal(again(PROMPT).logits, model(PROMPT).logits)
    assert again.config == model.config


def test_options_of_generation(capsys):
    model, streamed = model_of("Mamba"), []

    class Streamer:
        def put(self, tokens):
            streamed.append(tokens)

        def end(self):
            streamed.append(None)

    teacher = torch.tensor([[1, 2, 3, 4, 9, 9], [5, 6, 7, 8, 9, 9]])
    out = decode(
        PROMPT, model, 8, teacher_outputs=teacher, streamer=Streamer(), vocab_size=5,
        enable_timing=True,
    ).sequences  # fmt: skip
    assert torch.equal(out[:, :6], teacher) and out[:, 6:].max() < 5
    assert torch.equal(torch.cat(streamed[:-1], 1), out) and streamed[-1] is None
    assert "decoding time" in capsys.readouterr().out
    ended = decode(PROMPT, model, 8, teacher_outputs=teacher, eos_token_id=9).sequences
    assert torch.equal(ended, teacher[:, :5])
    repeated = model.generate(PROMPT, 8, repetition_penalty=1e9)
    assert all(len({*row}) == 8 for row in repeated.tolist())


def test_sampling():
    logits = torch.tensor([[0.5, 0.3, 0.15, 0.05]]).log().expand(4000, -1)

    def drawn(**options):
        torch.manual_seed(0)
        return {*sample(logits, **options).tolist()}

    assert drawn() == {0} and drawn(top_k=0) == {0, 1, 2, 3} and drawn(top_k=2) == {0, 1}
    assert drawn(top_k=0, top_p=0.6) == {0, 1} and drawn(top_k=9, min_p=0.2) == {0, 1, 2}
    assert drawn(top_k=0, temperature=0.01) == {0}


ERRORS = {
    "Mamba: dt_init is 'zero'": lambda: Mamba(8, dt_init="zero"),
    "Mamba2: process_group is given": (
        NotImplementedError,
        lambda: Mamba2(8, headdim=4, process_group=object()),
    ),
    "Mamba2: d_ssm is 16; expected a multiple of headdim, 5": lambda: Mamba2(8, headdim=5),
    "ngroups, 3": lambda: Mamba2(8, headdim=4, ngroups=3),
    "Mamba: layer_idx is None": lambda: Mamba(8)(torch.ones(1, 2, 8), InferenceParams(9, 1)),
    "states of 2 sequences": lambda: changed_batch(),
    "hidden_states has shape (2, 2, 16)": lambda: made("Mamba")(
        tokens(n=2), InferenceParams(9, 2, seqlen_offset=1)
    ),
    "cu_seqlens is [0, 1, 2] and seq_idx is None": lambda: made("Mamba2")(
        tokens(n=2)[:1], cu_seqlens=torch.tensor([0, 1, 2])
    ),
    "attn_layer_idx has 1": (
        NotImplementedError,
        lambda: MambaLMHeadModel(MambaConfig(8, n_layer=2, vocab_size=8, attn_layer_idx=[1])),
    ),
    "ssm_cfg['layer'] is 'Mamba4'": lambda: MambaLMHeadModel(
        MambaConfig(8, vocab_size=8, ssm_cfg={"layer": "Mamba4"})
    ),
}


def changed_batch():
    layer, state = made("Mamba"), InferenceParams(N, BATCH)
    layer(tokens(), inference_params=state)
    layer(tokens()[:1], inference_params=state)


test_errors = errors(ERRORS, ValueError)
