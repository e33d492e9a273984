"""The programs in examples/ run, and do what they print."""

import importlib.util
import re
import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"


def test_all_are_run():
    assert {x.name for x in EXAMPLES.glob("*.py")} == {"train_and_generate.py"}


def test_train_and_generate(tmp_path):
    """The loss falls, and the model that is loaded is the one that was saved."""
    torch = pytest.importorskip("torch")
    program, saved = EXAMPLES / "train_and_generate.py", tmp_path / "model.pt"
    command = [sys.executable, program, "--model", saved, "--steps", "25", "--prompt", "def build"]
    run = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    assert run.returncode == 0, run.stderr[-3000:]
    losses = [float(x) for x in re.findall(r"loss (\S+)", run.stdout)]
    assert len(losses) == 2 and losses[-1] < 0.9 * losses[0], losses
    *_, text = re.split(r"step 25: .*\n", run.stdout, maxsplit=1)
    assert text.startswith("def build") and len(text.rstrip("\n")) > len("def build")

    spec = importlib.util.spec_from_file_location("train_and_generate", program)
    example = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(example)
    model, characters = example.load(saved)
    weights = torch.load(saved, weights_only=True)["weights"]
    assert all(torch.equal(x, weights[name]) for name, x in model.state_dict().items())
    assert example.encode("def", characters).tolist() == [characters.index(x) for x in "def"]
