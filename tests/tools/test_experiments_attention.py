"""Experiments on attention itself, at a tiny size: its time, its rank, its random features."""

import importlib
import json

import numpy as np
import pytest
from experiment import OTHER, interrupted, refused, run
from idx_files import idx

torch = pytest.importorskip("torch", reason="PyTorch is not installed")
pytest.importorskip("matplotlib", reason="the experiments draw")

pytestmark = pytest.mark.usefixtures("experiment")


# --- scaling ------------------------------------------------------------------------------


def test_crossovers_are_where_an_operator_stays_faster():
    """The length before which softmax is never slower again; of lengths that both have."""
    scaling = importlib.import_module("scaling")
    times = {
        "softmax": {1: 1.0, 2: 2.0, 4: 4.0},
        "late": {1: 0.5, 2: 3.0, 4: 3.0, 8: 3.0},  # faster, slower, and faster
        "always": {1: 0.5, 2: 0.5, 4: 0.5},
        "never": {1: 2.0, 2: 3.0, 4: 5.0},
    }
    assert scaling.crossovers(times) == {"late": 4, "always": 1, "never": None}


def test_what_would_take_too_long_is_left_out(tmp_path, monkeypatch):
    scaling = importlib.import_module("scaling")
    asked = []

    def measured(n, names, long, size):
        asked.append((n, names, sorted(long)))
        seconds = {name: 5.0 if name == "softmax" else 0.1 for name in names}
        return {"seconds": seconds, "MiB": dict.fromkeys(names, 1.0)}

    monkeypatch.setattr(scaling, "measured", measured)
    monkeypatch.setitem(
        scaling.SIZES,
        "tiny",
        scaling.SIZES["tiny"] | {"powers": range(5, 8), "tokens": 2**6, "patience": 30},
    )
    times = run("scaling", tmp_path)["seconds"]
    assert [(n, "softmax" in names, long) for n, names, long in asked] == [
        (32, True, []), (64, True, ["softmax"]), (128, True, ["softmax"])
    ]  # fmt: skip
    assert list(times["linear"]) == [32, 64, 128]
    # Another limit, another run: 4 x 5 s is too much.
    asked.clear()
    monkeypatch.setitem(scaling.SIZES, "tiny", scaling.SIZES["tiny"] | {"patience": 15})
    times = run("scaling", tmp_path / "short")["seconds"]
    assert [n for n, names, _ in asked if "softmax" in names] == [32]
    assert list(times["softmax"]) == [32] and list(times["linear"]) == [32, 64, 128]


@pytest.mark.slow
def test_interrupted_measurements_go_on(tmp_path, monkeypatch):
    """What was measured is not measured again, and the command must be the same."""
    scaling = importlib.import_module("scaling")
    plain, calls = scaling.measured, []
    monkeypatch.setattr(scaling, "measured", lambda *x: calls.append(x[0]) or plain(*x))
    with interrupted(scaling, "measured", 2):
        run("scaling", tmp_path)
    first = json.loads((tmp_path / "scaling.parts").read_text())["parts"]["128"]
    result = run("scaling", tmp_path)
    assert calls == [128, 256]
    assert {name: y[128] for name, y in result["seconds"].items()} == first["seconds"]
    refused(OTHER, "scaling", tmp_path, "--seed", "1")
    for content in ("nothing", "[]", "{}"):
        (tmp_path / "scaling.parts").write_text(content)
        refused("holds no parts of a run", "scaling", tmp_path)


# --- images -------------------------------------------------------------------------------


@pytest.mark.parametrize("shape", [(14, 4, 3), (13, 3, 32, 32)])
def test_images_of_the_user(tmp_path, shape):
    """MNIST's format and CIFAR-10's, whose colours stand by pixels."""
    images = importlib.import_module("image_generation")
    x = np.random.default_rng(0).integers(0, 256, shape, dtype=np.uint8)
    if x.ndim == 3:
        (tmp_path / "images").write_bytes(idx(x))
        rows, found, levels = images.pictures(str(tmp_path / "images"))
    else:
        np.c_[np.zeros(len(x), np.uint8), x.reshape(len(x), -1)].tofile(tmp_path / "images.bin")
        rows, found, levels = images.pictures(str(tmp_path / "images.bin"))
        x = x.transpose(0, 2, 3, 1)
    assert found == x.shape[1:] and levels == 256
    assert sorted(rows.tolist()) == sorted(x.reshape(len(x), -1).tolist())


@pytest.mark.slow
def test_a_run_on_images_of_the_user(tmp_path):
    x = np.random.default_rng(0).integers(0, 256, (60, 4, 3), dtype=np.uint8)
    (tmp_path / "images").write_bytes(idx(x))
    options = ["--images", str(tmp_path / "images"), "--part", "quality", "--kinds", "linear"]
    (rows,) = run("image_generation", tmp_path, *options)["quality"].values()
    assert 7 < rows[-1]["bits per dimension"] < 10  # noise of 256 levels
    for content, message in ((idx(x)[:-1], "download it again"), (idx(x[:2]), "a dozen")):
        (tmp_path / "images").write_bytes(content)
        refused(message, "image_generation", tmp_path, *options)


@pytest.mark.slow
def test_checkpoints_of_other_images(tmp_path):
    """Another file, and another shape in a file of the same name: neither goes on."""
    options = ["--part", "quality", "--kinds", "linear"]
    file = tmp_path / "images"
    file.write_bytes(idx(np.zeros((60, 4, 3), np.uint8)))
    run("image_generation", tmp_path, *options, "--images", str(file))
    refused(OTHER, "image_generation", tmp_path, *options)
    file.write_bytes(idx(np.zeros((60, 4, 4), np.uint8)))
    refused(
        "of a model with other weights",
        "image_generation",
        tmp_path,
        *options,
        "--images",
        str(file),
    )


def test_steps_after_a_state_of_any_length():
    """What throughput steps from is a state as the model's own."""
    images = importlib.import_module("image_generation")
    training = importlib.import_module("training")
    for kind in ("linear", "softmax"):
        model = training.language_model(
            kind, 9, width=16, heads=2, depth=2, feedforward=16, length=8
        )
        own = model(torch.zeros(3, 5, dtype=torch.int64), return_state=True)[1]
        made = images._state_after(model, 3, 5)
        assert [x.shape for y in made.blocks for x in y if x is not None] == [
            x.shape for y in own.blocks for x in y if x is not None
        ]
        assert torch.equal(made.position, own.position)
        assert model.step(torch.zeros(3, dtype=torch.int64), made)[0].shape == (3, 9)


# --- ranks --------------------------------------------------------------------------------


@pytest.fixture
def model():
    """A model of two layers of softmax attention, not causal."""
    training = importlib.import_module("training")
    nn = importlib.import_module("linattn.torch.nn")
    training.seeded(0)
    return training.language_model(
        lambda width, heads: nn.SoftmaxAttention(width, heads, causal=False),
        50, width=16, heads=2, depth=2, feedforward=32, length=24,
    ).eval()  # fmt: skip


def test_masked_characters():
    ranks = importlib.import_module("linformer_rank")
    text = torch.arange(5000) % 40
    masked, whole, where = ranks.draw(text, 100, 64, 40, torch.Generator().manual_seed(0))
    assert ((whole[:, 1:] - whole[:, :-1]) % 40 == 1).all()
    assert (masked[where] == 40).all() and torch.equal(masked[~where], whole[~where])
    # Six standard deviations of a mean of 6,400 draws.
    assert abs(where.float().mean() - 0.15) < 6 * (0.15 * 0.85 / 6400) ** 0.5


def test_matrices_are_those_that_the_model_uses(model):
    """With them its layers are computed again."""
    ranks = importlib.import_module("linformer_rank")
    tokens = torch.randint(50, (3, 24), generator=torch.Generator().manual_seed(0))
    seen = []
    for block in model.blocks:
        block.attention.register_forward_hook(lambda *x: seen.append(x[-1]))
    with torch.no_grad():
        found = ranks.operands(model, tokens)
        for (q, k, v), block, y in zip(found, model.blocks, seen, strict=True):
            o = (ranks._attention(q, k) @ v).transpose(1, 2).flatten(2)
            torch.testing.assert_close(block.attention.out_proj(o), y, rtol=1e-5, atol=1e-6)
        near = torch.tensor(ranks.neighbours(model, tokens))
        # Of an even spread over 24 tokens, a little less than three: the ends have one neighbour.
        assert near.shape == (2, 2) and torch.allclose(near, torch.tensor(70 / 24**2), rtol=0.2)


def test_errors_of_low_rank(model):
    """That of the best matrix is what Eckart and Young say; none is below it."""
    ranks = importlib.import_module("linformer_rank")
    tokens = torch.randint(50, (3, 24), generator=torch.Generator().manual_seed(0))
    some = [1, 4, 12, 24]
    g = torch.Generator().manual_seed(1)
    with torch.no_grad():
        errors = ranks.errors(model, tokens, some, g)
        parts = torch.tensor(ranks.spectra(model, tokens, some))
        s = torch.stack(
            [
                torch.linalg.svdvals(ranks._attention(q, k))
                for q, k, _ in ranks.operands(model, tokens)
            ]
        )
    for i, r in enumerate(some):
        expected = (s[..., r:].square().sum(-1) / s.square().sum(-1)).sqrt().mean().item()
        assert errors["best"][i] == pytest.approx(expected, rel=1e-3, abs=1e-5)
    assert (parts.diff(dim=-1) > 0).all() and torch.allclose(parts[..., -1], torch.ones(()))
    for name in ("random, output", "eq. 7, untrained, output"):
        assert all(x > y for x, y in zip(errors[name], errors["best, output"], strict=True))


# --- random features ----------------------------------------------------------------------


def test_replaced_attention_approximates_softmax():
    """More features, nearer logits; the weights are the same."""
    performer = importlib.import_module("performer_compatibility")
    training = importlib.import_module("training")

    def make(kind):
        training.seeded(0)
        return training.language_model(
            kind, 50, width=16, heads=2, depth=2, feedforward=32, length=24
        )

    softmax = make("softmax").eval()
    tokens = torch.randint(50, (3, 24), generator=torch.Generator().manual_seed(0))
    off = []
    with torch.no_grad():
        for block in softmax.blocks:  # small scores, of which the features' variance is small
            block.attention.q_proj.weight.mul_(0.3)
            block.attention.k_proj.weight.mul_(0.3)
        goal = softmax(tokens)
        for features in (16, 1024):
            model = performer.replaced(softmax, features, True, make).eval()
            assert torch.equal(model.embedding.weight, softmax.embedding.weight)
            first = model(tokens)
            performer.redraw(model, torch.Generator().manual_seed(5))
            assert not torch.equal(model(tokens), first)
            off.append((first - goal).norm() / goal.norm())
    assert off[1] < off[0] / 4  # as 1 / sqrt(m), an eighth
    assert off[1] < 0.05
