"""Spoken strings of digits, synthesised during the test, and their recognition."""

import json
import shutil

import numpy as np
import pytest
from experiment import OTHER, interrupted, refused, run, same_rows

torch = pytest.importorskip("torch", reason="PyTorch is not installed")
pytest.importorskip("matplotlib", reason="the experiments draw")
pytest.importorskip("scipy", reason="the mel filter banks are SciPy's")

FORMANTS = ("--voices", "formants")


@pytest.mark.slow
def test_tiny(experiment, tmp_path):
    """A run says whose voices they were; the same command again finds its checkpoints."""
    speech = experiment("speech")
    first = run("speech", tmp_path, *FORMANTS)
    facts = json.loads((tmp_path / "speech.json").read_text())
    assert {"command", "machine", "seed", "results"} <= set(facts)
    assert facts["results"]["voices"] == "formants" and (tmp_path / "speech.png").exists()
    for kind in speech.KINDS:
        assert first["seconds"][kind]["an epoch"] > 0
        assert {"loss", "test loss", "digit error rate"} <= set(first["rows"][kind][-1])
    assert run("speech", tmp_path, *FORMANTS)["rows"] == first["rows"]
    refused(OTHER, "speech", tmp_path, *FORMANTS, "--seed", "1")


@pytest.mark.slow
def test_interrupted_runs_go_on_bit_for_bit(experiment, tmp_path):
    more = *FORMANTS, "--kinds", "linear", "--utterances", "3"
    whole = run("speech", tmp_path / "whole", *more)
    assert whole["utterances"] == [3, 3]
    # After two steps and a batch of the evaluation, in one more step.
    with interrupted(experiment("speech"), "loss_of", 4):
        run("speech", tmp_path / "cut", *more)
    again = run("speech", tmp_path / "cut", *more)
    same_rows(again["rows"]["linear"], whole["rows"]["linear"])


def test_voices_that_are_not_there(experiment, monkeypatch):
    spoken = experiment("spoken_digits")
    monkeypatch.setattr(spoken.shutil, "which", lambda name: None)
    assert spoken.source_of("auto") == spoken.source_of("formants") == "formants"
    with pytest.raises(SystemExit, match=r"install it .* or choose --voices formants"):
        spoken.source_of("espeak")
    with pytest.raises(ValueError, match="source is 'nobody'; expected one of"):
        next(spoken.utterances("nobody", 1, held_out=False, seed=0))
    for digits in ((0, 2), (3, 2)):
        with pytest.raises(ValueError, match="expected the least number"):
            next(spoken.utterances("formants", 1, held_out=False, seed=0, digits=digits))


@pytest.mark.parametrize("source", ["formants", "espeak"])
def test_what_is_spoken(experiment, source):
    """Of the seed alone; the voices that are held out are others; longer strings last longer."""
    if source == "espeak" and not shutil.which("espeak-ng"):
        pytest.skip("espeak-ng is not installed")
    spoken = experiment("spoken_digits")

    def said(held_out, digits=(1, 3), seed=0):
        return list(spoken.utterances(source, 5, held_out=held_out, seed=seed, digits=digits))

    for x, y in zip(said(False), said(False), strict=True):
        np.testing.assert_array_equal(x.features, y.features)
        assert x.digits == y.digits and 1 <= len(x.digits) <= 3
        assert x.features.shape[1] == 40 and x.features.dtype == np.float32
        assert abs(x.features.mean()) < 1e-3 and abs(x.features.std() - 1) < 1e-3
    assert [x.digits for x in said(False, seed=1)] != [x.digits for x in said(False)]
    names = [{x.name.split("+")[-1] for x in spoken.speakers(source, y)} for y in (False, True)]
    assert names[0] and names[1] and not names[0] & names[1]
    short, long = (sum(len(x.features) for x in said(True, y)) for y in ((1, 1), (6, 6)))
    assert long > 3 * short


def test_mel_bands(experiment):
    """A tone is loudest in the band around it; bands rise and fall by equal steps of mel."""
    mel = experiment("spoken_digits").mel
    low, high = (2595 * np.log10(1 + x / 700) for x in (60, 8000))
    centres = 700 * (10 ** (np.linspace(low, high, 42)[1:-1] / 2595) - 1)
    for rate in (16_000, 22_050):
        t = np.arange(rate // 2) / rate
        for band in (5, 20, 35):
            x = mel(np.sin(2 * np.pi * centres[band] * t), rate)
            assert (x.argmax(1) == band).all()
        assert abs(len(x) - 48) <= 1  # half a second, a frame every 10 ms, the last ones whole
    with pytest.raises(ValueError, match="at least a window's 400"):
        mel(np.ones(399), 16_000)


def test_edit_distance(experiment):
    distance = experiment("speech").distance
    for x, y, expected in (
        ([], [], 0), ([1, 2, 3], [1, 2, 3], 0), ([1, 2, 3], [1, 3], 1), ([], [4, 4], 2),
        ([1, 2, 3], [2, 3, 4], 2), ([1, 2], [2, 1], 2), ([5, 5, 5], [6, 6, 6, 6], 4),
    ):  # fmt: skip
        assert distance(x, y) == distance(y, x) == expected


def test_reading(experiment):
    """Repetitions are one unless there is a blank between them; padding is not read."""
    speech = experiment("speech")
    best = torch.tensor([[10, 3, 3, 10, 3, 7, 7, 10], [1, 1, 2, 10, 10, 5, 5, 5]])
    found = torch.nn.functional.one_hot(best, 11).log()
    read = speech.read(lambda features, frames: (found, frames), None, torch.tensor([8, 5]))
    assert read == [[3, 3, 7], [1, 2]]


@pytest.mark.parametrize("kind", ["softmax", "linear", "lstm"])
def test_padding_is_not_heard(experiment, kind):
    """An utterance is recognised the same alone and beside a longer one, whatever pads it."""
    speech = experiment("speech")
    torch.manual_seed(0)
    model = speech.Recognizer(kind, **speech.SIZES["tiny"]["model"]).double()
    x = torch.randn(2, 30, 40, dtype=torch.float64)
    x[0, 19:] = 1e3
    alone, frames = model(x[:1, :19], torch.tensor([19]))
    together, both = model(x, torch.tensor([19, 30]))
    assert frames.tolist() == [10] and both.tolist() == [10, 15]  # stacked by two
    # float64, sums of at most 128 products in each of some ten layers: 1e-10 is ample.
    torch.testing.assert_close(together[:1, :10], alone, rtol=1e-10, atol=1e-10)
