"""linattn.torch.nn: a block of a transformer, and a language model of blocks."""

import copy

import pytest
import torch
from layer_cases import BATCH, MASK, OTHERS, RECURRENT_KINDS, E, N, by_steps, tokens, within

from linattn.torch import nn

pytestmark = pytest.mark.usefixtures("seeded")


def model(new=None, dtype=torch.float64, **options):
    """Of two blocks, the second of another kind unless one is given."""
    kinds = (nn.LinearAttention, nn.GatedDeltaNet)
    layers = [kind(E, 2, dtype=dtype) for kind in kinds] if new is None else [new(dtype=dtype)]
    blocks = [nn.TransformerBlock(x, dim_feedforward=24, dtype=dtype) for x in layers]
    return nn.TransformerLM(7, blocks, dtype=dtype, **options)


def sentences(batch=BATCH, n=N):
    return torch.randint(7, (batch, n))


@pytest.mark.parametrize("new", [None, *RECURRENT_KINDS])
def test_a_model_in_three_forms(new):
    lm, x = model(new, max_length=2 * N), sentences()
    y, _ = lm(x, return_state=True)
    assert y.shape == (BATCH, N, 7)
    first, state = lm(x[:, :4], return_state=True)
    within(torch.cat([first, lm(x[:, 4:], state=state)], 1), y, 1000)
    within(by_steps(lm, x, lm.init_state(BATCH))[0], y, 1000)
    z = lm(x, key_padding_mask=MASK)
    for i in range(BATCH):
        there = ~MASK[i]
        within(z[i, there], lm(x[i : i + 1, there])[0], 1000)
    _, state = lm(x, key_padding_mask=MASK, return_state=True)
    assert state.position.tolist() == (~MASK).sum(1).tolist()


def test_a_block_is_its_equation():
    block = nn.TransformerBlock(nn.LinearAttention(E, 2, dtype=torch.float64), dtype=torch.float64)
    x = tokens()
    y = x + block.attention(block.norm1(x))
    inner = torch.nn.functional.gelu(block.linear1(block.norm2(y)))
    within(block(x), y + block.linear2(inner))
    dropped, places = copy.deepcopy(block), []
    dropped.dropout.p = 1.0
    dropped.dropout.register_forward_hook(lambda *call: places.append(call))
    assert torch.equal(dropped(x), x) and len(places) == 3
    assert torch.equal(dropped.eval()(x), block(x))


def test_a_model_learns():
    """0 is followed by 1, 2 and 3 in turn: what comes next is in the past, not in the token."""
    lm = nn.TransformerLM(
        4, [nn.TransformerBlock(layer(32, 2)) for layer in (nn.GatedDeltaNet, nn.LinearAttention)]
    )
    x = torch.tensor([0, 1, 0, 2, 0, 3] * 5)
    x = torch.stack([x[i : i + 24] for i in range(6)])
    optimizer = torch.optim.AdamW(lm.parameters(), lr=1e-2)
    for _ in range(60):
        logits = lm(x[:, :-1])[:, 3:]
        loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), x[:, 4:].flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    assert loss < 0.02
    lm.eval()
    assert lm.generate(x[:, :12], 12, temperature=0).tolist() == x.tolist()


@pytest.mark.parametrize("new", [None, *RECURRENT_KINDS])
@pytest.mark.parametrize("options", [{"temperature": 0}, {"top_k": 3}, {"temperature": 0.7}])
def test_generation_with_states_is_that_from_scratch(new, options):
    lm, x = model(new).eval(), sentences()
    lm.embedding.weight.data *= 50  # probabilities that differ
    found = lm.generate(x, 6, generator=torch.Generator().manual_seed(3), **options)
    generator = torch.Generator().manual_seed(3)
    for _ in range(6):
        logits = lm(x)[:, -1].detach().float()
        if options.get("temperature") == 0:
            drawn = logits.argmax(-1)
        else:
            logits = logits / options.get("temperature", 1)
            if "top_k" in options:
                kept = logits.topk(3).indices
                logits = torch.full_like(logits, -torch.inf).scatter(
                    1, kept, logits.gather(1, kept)
                )
            drawn = torch.multinomial(logits.softmax(-1), 1, generator=generator)[:, 0]
        x = torch.cat([x, drawn[:, None]], 1)
    assert torch.equal(found, x)


def drawn_often(lm, x, **options):
    """The tokens that follow, of many draws."""
    generator = torch.Generator().manual_seed(5)
    many = lm.generate(x.expand(2000, -1), 1, generator=generator, **options)
    return many[:, -1].bincount(minlength=7) / 2000


def test_draws_from_the_most_probable_tokens():
    lm, x = model().eval(), sentences(1, 2)
    lm.embedding.weight.data *= 50
    p = lm(x)[0, -1].detach().softmax(-1)
    falling, order = p.sort(descending=True)
    for kept in range(1, 8):
        most = falling[:kept].sum()
        found = drawn_often(lm, x, top_p=float(most - falling[kept - 1] / 2))
        assert not found[order[kept:]].any()
        expected = (p * (p >= falling[kept - 1])) / most
        assert (found - expected).abs().max() < 5 / 2000**0.5 / 2  # five deviations
    most = falling[:2] / falling[:3].sum()  # of those that top_k leaves
    found = drawn_often(lm, x, top_k=3, top_p=float(most.sum() - most[1] / 2))
    assert not found[order[2:]].any()
    assert torch.equal(drawn_often(lm, x, top_p=1.0), drawn_often(lm, x))


def test_generation_ends():
    """Each sequence at its stop token, which fills it; the whole when all have ended."""
    lm, x = model().eval(), sentences(3, 4)
    lm.embedding.weight.data *= 50
    options = {"temperature": 2.0}
    whole = lm.generate(x, 40, generator=torch.Generator().manual_seed(3), **options)
    for stop in range(7):
        found = lm.generate(
            x, 40, generator=torch.Generator().manual_seed(3), stop_token=stop, **options
        )
        new = found[:, 4:]
        ended = (new == stop).cumsum(1) > 0
        assert (new[ended] == stop).all()  # and nothing else after the first
        assert not ended[:, :-1].all(0).any()  # at once
        assert ended[:, -1].all() or found.shape == (3, 44)
        first = next((i for i in range(new.shape[1]) if ended[:, i].any()), new.shape[1])
        assert torch.equal(new[:, : first + 1], whole[:, 4 : 4 + first + 1])
    greedy = lm.generate(x[:1], 1, temperature=0)
    stop = int(greedy[0, -1])
    assert torch.equal(lm.generate(x[:1], 9, temperature=0, stop_token=stop), greedy)


def test_what_a_model_refuses():
    lm, x = model(max_length=N), sentences()
    assert torch.equal(lm.generate(x, 0), x)
    for call, error, message in (
        (lambda: lm(x[0]), ValueError, r"tokens has shape \(11,\); expected \(batch, tokens\)"),
        (lambda: lm(x.float()), TypeError, r"tokens has dtype torch\.float32; expected int64"),
        (lambda: lm(sentences(2, N + 1)), ValueError, "position 11; expected less than max_length"),
        (lambda: lm(x, key_padding_mask=MASK[1:]), ValueError, "key_padding_mask has shape"),
        (lambda: lm(x, state=lm.init_state(2)), ValueError, "state is of 2 sequences; expected 3"),
        (lambda: lm(x, state=()), TypeError, "state is a tuple; expected a ModelState"),
        (lambda: lm.step(x, lm.init_state(3)), ValueError, r"expected \(batch,\)"),
        (lambda: lm.generate(x[:, :0], 2), ValueError, r"prompt has shape \(3, 0\)"),
        (lambda: lm.generate([[1]], 2), TypeError, "generate: prompt is a list"),
        (lambda: lm.generate(x, 2), ValueError, "position 11"),
        (lambda: lm(x + 7), ValueError, r"LM: tokens has values from 7 to \d+; expected 0 to 6"),
        (lambda: lm.generate(x - 8, 2), ValueError, r"generate: prompt has values from -8 to -"),
        (lambda: lm.step(x[:, 0] * 0 + 7, lm.init_state(3)), ValueError, "step: tokens has values"),
        (lambda: lm.generate(x, max_new_tokens=2), TypeError, "max_new_tokens is .* steps"),
        (lambda: lm.generate(x, -1), ValueError, "steps is -1"),
        (lambda: lm.generate(x, 2, top_k=8), ValueError, "top_k is 8; expected at most 7"),
        (lambda: lm.generate(x, 2, top_p=0.0), ValueError, "top_p is 0.0; expected a positive"),
        (lambda: lm.generate(x, 2, top_p=1.5), ValueError, "top_p is 1.5; expected a number above"),
        (lambda: lm.generate(x, 2, stop_token=7), ValueError, "stop_token is 7; expected 0 to 6"),
        (lambda: lm.generate(x, 2, stop_token=1.0), TypeError, "stop_token is 1.0; expected an in"),
        (lambda: lm.generate(x, 2, 0.5), TypeError, "3 arguments .* expected prompt and steps"),
        (lambda: lm.generate(x, 2, temperature=-1.0), ValueError, "temperature is -1.0"),
        (lambda: model(OTHERS[0].values[0]).generate(x, 2), ValueError, "is not causal"),
    ):
        with pytest.raises(error, match=message):
            call()
