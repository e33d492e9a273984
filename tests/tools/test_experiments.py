"""Each experiment at a tiny size; interrupted runs; corrupt files."""

import gzip
import importlib
import json
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
from experiment import OTHER, interrupted, refused, run, same_rows
from idx_files import idx
from slow import slow

torch = pytest.importorskip("torch", reason="PyTorch is not installed")
pytest.importorskip("matplotlib", reason="the experiments draw")

EXPERIMENTS = Path(__file__).resolve().parents[2] / "experiments"
pytestmark = pytest.mark.usefixtures("experiment")


@pytest.mark.parametrize("name", [
    "copy_task",
    *slow("fast_weights_lm", "scaling", "associative_retrieval", "language_models",
          "image_generation", "linformer_rank", "performer_compatibility"),
])  # fmt: skip
def test_tiny(name, tmp_path):
    if name == "image_generation":
        pytest.importorskip("sklearn", reason="scikit-learn has the digits")
    run(name, tmp_path)
    (facts,) = (json.loads(x.read_text()) for x in tmp_path.glob("*.json"))
    assert {"command", "machine", "seed", "results"} <= set(facts)
    assert list(tmp_path.glob("*.png"))


@pytest.mark.slow
@pytest.mark.parametrize(
    "name, checkpoint", [("copy_task", "copy_{}.pt"), ("fast_weights_lm", "lm_{}.pt")]
)
def test_interrupted_runs_go_on_bit_for_bit(name, checkpoint, tmp_path):
    """Every kind of attention, interrupted in the step after a checkpoint."""
    kinds = ("softmax", "linear", "delta", "gated_delta", "performer")
    whole = run(name, tmp_path / "whole", "--kinds", *kinds)
    for kind in kinds:
        with interrupted(torch.optim.AdamW, "step", 4):  # a checkpoint is after the second
            run(name, tmp_path / "cut", "--kinds", kind)
        saved = torch.load(tmp_path / "cut" / checkpoint.format(kind))
        assert saved["step"] == 2
        run(name, tmp_path / "cut", "--kinds", kind)
        whole_one, cut = (
            torch.load(tmp_path / x / checkpoint.format(kind)) for x in ("whole", "cut")
        )
        same_rows(whole_one["rows"], cut["rows"])
        assert all(torch.equal(x, cut["model"][y]) for y, x in whole_one["model"].items())
    again = run(name, tmp_path / "cut", "--kinds", *kinds)
    assert again.get("samples") == whole.get("samples")


def test_checkpoints_between_measurements(tmp_path, monkeypatch, capsys):
    """What is between two of them is not lost, nor the losses of which the next row is the mean."""
    copy_task, training = (importlib.import_module(x) for x in ("copy_task", "training"))
    monkeypatch.setattr(training, "BETWEEN", 0.0)
    monkeypatch.setitem(copy_task.SIZES["tiny"], "every", 3)
    whole = run("copy_task", tmp_path / "whole", "--kinds", "linear")
    with interrupted(copy_task, "loss_of", 3):
        run("copy_task", tmp_path / "cut", "--kinds", "linear")
    assert "goes on from step 2" in capsys.readouterr().out
    again = run("copy_task", tmp_path / "cut", "--kinds", "linear")
    same_rows(again["linear"], whole["linear"])


@pytest.mark.slow
def test_ctrl_c_leaves_a_checkpoint(tmp_path, children_heed_ctrl_c):
    """The script itself, as in a terminal."""
    command = [sys.executable, str(EXPERIMENTS / "copy_task.py"), "--size", "tiny", "--steps",
               "2000", "--kinds", "linear", "--out", str(tmp_path)]  # fmt: skip
    checkpoint = tmp_path / "copy_linear.pt"
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        while not checkpoint.exists():
            assert process.poll() is None
            time.sleep(0.05)
        process.send_signal(signal.SIGINT)
        said, _ = process.communicate(timeout=300)
    assert process.returncode == 130
    step = torch.load(checkpoint)["step"]
    assert 0 < step < 2000 and "goes on from step" in said
    assert not (tmp_path / "copy_task.json").exists()


def test_training_ends_early(tmp_path):
    """Copying, above an accuracy; and again from its checkpoint."""
    for _ in range(2):
        rows = run("copy_task", tmp_path, "--kinds", "linear", "--until", "-1")["linear"]
        assert [x["step"] for x in rows] == [2]
    done = importlib.import_module("training").stalled("bits", 0.01, 2)
    for values, ended in (
        ([3.0, 2.0], False), ([3.0, 2.999, 2.995], True), ([3.0, 2.9, 2.98], False),
        ([3.0, 2.9, 2.895, 2.899], True), ([], False),
    ):  # fmt: skip
        assert done([{"bits": x} for x in values]) is ended


@pytest.mark.parametrize("values, step", [((3, 1, 2, 1), 2), ((4, 3, 2, 1), 4)])
def test_training_ends_with_the_best_weights(values, step, tmp_path):
    """Those of the first row with the least, from a checkpoint too."""
    training = importlib.import_module("training")
    options = training.arguments("", ["--size", "tiny", "--out", str(tmp_path)])
    model, seen = torch.nn.Linear(2, 1), []

    def evaluate(model):
        seen.append(model.weight.clone())
        return {"bits": values[len(seen) - 1]}

    for _ in range(2):
        rows = training.train(
            "line", model, lambda model, g: model(torch.randn(8, 2, generator=g)).sum(), options,
            steps=4, rate=lambda step: 0.1, evaluate=evaluate, every=1, best="bits",
        )  # fmt: skip
        assert [x["bits"] for x in rows] == list(values) and len(seen) == 4
        assert training.least_row(rows, "bits")["step"] == step
        assert torch.equal(model.weight, seen[step - 1])
        torch.nn.init.zeros_(model.weight)


def test_the_best_weights_of_language_models_are_tested(tmp_path, monkeypatch):
    lm = importlib.import_module("language_models")
    plain, judged = lm.Text.judged, []

    def first_is_best(text, model, rows):
        if rows is text.test:
            return plain(text, model, rows)
        judged.append(plain(text, model, text.test))
        return float(len(judged))

    monkeypatch.setattr(lm.Text, "judged", first_is_best)
    more = ("--kinds", "linear", "--steps", "4", "--rates", "3e-3")
    found = run("language_models", tmp_path, *more)["models"]["linear"]
    assert found["best"] == 1 and found["test"] == judged[0] != judged[-1]
    assert found["rate"] == 3e-3 and found["search"] == {}


def test_dropout_of_language_models(tmp_path):
    """It changes the training, is recorded, and its checkpoints are its own."""
    more = ("--kinds", "linear", "--steps", "4", "--rates", "3e-3")
    plain = run("language_models", tmp_path / "plain", *more)
    found = run("language_models", tmp_path, *more, "--dropout", "0.5")
    assert (plain["dropout"], found["dropout"]) == (0.0, 0.5)
    plain, found = (x["models"]["linear"] for x in (plain, found))
    assert found["parameters"] == plain["parameters"] and found["test"] != plain["test"]
    more = (*more, "--characters", "10000")
    assert run("language_models", tmp_path / "short", *more)["characters"] == 9000
    refused(OTHER, "language_models", tmp_path, *more[:-2])


def test_the_recipe_of_the_paper(tmp_path):
    """RAdam at a constant rate, then a tenth of it."""
    copy_task = importlib.import_module("copy_task")
    recipe = copy_task.recipe("paper", 10, 2, 0.5)
    assert recipe["optimizer"] is torch.optim.RAdam
    assert [recipe["rate"](i) for i in (0, 2, 3, 9)] == [1e-3, 1e-3, 1e-4, 1e-4]
    once, twice = (copy_task.recipe("ours", x * 8, 2, 0.5, x)["rate"] for x in (1, 2))
    assert [twice(i) for i in range(16)] == [once(i % 8) / 2 ** (i // 8) for i in range(16)]
    more = ("--kinds", "linear", "--recipe", "paper", "--positions", "noise")
    run("copy_task", tmp_path, *more)
    refused(OTHER, "copy_task", tmp_path, "--kinds", "linear")


def test_checkpoints_of_something_else(tmp_path):
    command = "copy_task", tmp_path, "--kinds", "linear"
    run(*command)
    for more in (("--seed", "1"), ("--length", "12"), ("--steps", "3")):
        refused(OTHER, *command, *more)
    refused("--length 7: expected 8 or more", "copy_task", tmp_path, "--length", "7")
    path = tmp_path / "copy_linear.pt"
    saved = torch.load(path)
    saved["model"].popitem()
    torch.save(saved, path)
    refused("other weights", *command)
    torch.save([1], path)
    refused("no checkpoint of these experiments", *command)
    path.write_bytes(b"nothing")
    refused("is no checkpoint", *command)


def test_checkpoints_of_another_text(tmp_path):
    text = tmp_path / "text"
    command = "fast_weights_lm", tmp_path, "--kinds", "linear", "--text", str(text)
    text.write_text("To be, or not to be. " * 100, encoding="utf-8")
    run(*command)
    for content, message in (
        (b"Not to be, or to be. " * 100, OTHER),
        (b"To be", "has 5 characters; expected 330"),
        (b"\xff\xfe" * 1000, "expected a text file in UTF-8"),
    ):
        text.write_bytes(content)
        refused(message, *command)


def test_the_copied_part():
    """The second s is the first, and stands after a 0."""
    tokens, second = importlib.import_module("copy_task").draw(
        50, 128, torch.Generator().manual_seed(0)
    )
    for row, mask in zip(tokens, second, strict=True):
        n = int(mask.sum())
        assert 32 <= n <= 62
        assert row[0] == row[n + 1] == 0 and (row[2 * n + 2 :] == 0).all()
        assert torch.equal(row[1 : n + 1], row[mask]) and (row[mask] > 0).all()


@pytest.mark.parametrize("repeated", [False, True])
def test_pairs_to_retrieve(repeated):
    """The value of a key is its last one; each pair comes once if keys do not repeat."""
    draw = importlib.import_module("associative_retrieval").draw
    keys, values, queries, right = draw(6, 3, repeated, torch.Generator().manual_seed(0))
    for k, v, q, goal in zip(keys, values, queries, right, strict=True):
        last = dict(zip(k.tolist(), v.tolist(), strict=True))
        assert goal.tolist() == [last.get(x, -1) for x in q.tolist()]
        if not repeated:
            assert sorted(last) == sorted(last.values()) == list(range(6))


@pytest.mark.parametrize("rule", ["sum", "delta", "gated_delta"])
def test_orthogonal_keys_are_retrieved(rule):
    """Without decay a memory answers exactly where keys do not overlap."""
    retrieval = importlib.import_module("associative_retrieval")
    model = retrieval.Memory(4, rule)
    with torch.no_grad():
        model.embedding.weight.copy_(torch.eye(4, 8))
        for layer in (model.k, model.q):  # a key reads its embedding, after a value
            layer.weight.zero_()
            layer.bias.zero_()
            layer.weight[:8, -8:] = 50 * torch.eye(8)
        for gate in (model.beta, model.gate):
            gate.weight.zero_()
            gate.bias.fill_(50.0)
    drawn = retrieval.draw(4, 2, False, torch.Generator().manual_seed(0))
    with torch.no_grad():
        assert retrieval.loss_of(model, drawn, "relu" if rule == "sum" else "l2norm") < 1e-6


def test_accuracy_by_length():
    listops = importlib.import_module("listops")
    trees = [np.zeros(n, np.int8) for n in (3, 4, 12, 25)]
    found = np.array([True, False, True, False])
    assert listops.by_length(found, trees, 0, 30) == {
        "0 to 10": 0.5, "10 to 20": 1.0, "20 to 30": 0.0,
    }  # fmt: skip


def test_ngram_bits():
    """Of text that repeats, few; of noise, those of its alphabet."""
    lm = importlib.import_module("fast_weights_lm")
    rng = np.random.default_rng(0)
    loop, noise = torch.arange(4).repeat(500), torch.tensor(rng.integers(0, 4, 4000))
    assert lm.ngram_bits(loop, loop[:100], 4, 3) < 0.1
    assert 1.95 < lm.ngram_bits(noise, torch.tensor(rng.integers(0, 4, 1000)), 4, 2) < 2.1
    with pytest.raises(SystemExit, match="expected a text file"):
        lm.text_of("/nosuch/file", 10)


def test_files_of_images(tmp_path):
    images = importlib.import_module("image_generation")
    x = np.arange(24, dtype=np.uint8).reshape(2, 3, 4)
    data = idx(x)
    broken = gzip.compress(data)
    broken = broken[:12] + b"\xff" * 8 + broken[20:]
    for name, content in (("plain", data), ("zipped", gzip.compress(data))):
        (tmp_path / name).write_bytes(content)
        np.testing.assert_array_equal(images.read_idx(tmp_path / name), x)
    for name, content, message in (
        ("magic", b"\1" + data[1:], "expected 00 00 08"),
        ("short", data[:-1], "holds 23 bytes; expected 24"),
        ("header", data[:6], "ends within its header"),
        ("zipped and short", gzip.compress(data)[:-9], "expected an idx file"),
        ("zipped bits", broken, "expected an idx file"),
    ):
        (tmp_path / name).write_bytes(content)
        with pytest.raises(ValueError, match=message):
            images.read_idx(tmp_path / name)
    with pytest.raises(ValueError, match="expected an idx file"):
        images.read_idx(tmp_path / "nosuch")
    rows = np.zeros((2, 3073), np.uint8)
    rows[:, 0], rows[1, 1:] = (3, 9), 7
    rows.tofile(tmp_path / "cifar")
    pixels, labels = images.read_cifar(tmp_path / "cifar")
    assert pixels.shape == (2, 3, 32, 32) and labels.tolist() == [3, 9] and pixels[1].min() == 7
    rows[0, 0] = 10
    rows.tofile(tmp_path / "cifar")
    with pytest.raises(ValueError, match="the binary version of CIFAR-10"):
        images.read_cifar(tmp_path / "cifar")
