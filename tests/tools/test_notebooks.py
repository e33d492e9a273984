"""The notebooks run from top to bottom."""

import base64
import io
import json
from pathlib import Path

import numpy as np
import pytest

NOTEBOOKS = Path(__file__).resolve().parents[2] / "notebooks"
FILES = sorted(NOTEBOOKS.glob("*.ipynb"))


def cells_of(file):
    return json.loads(file.read_text(encoding="utf-8"))["cells"]


def outputs_of(name):
    return [x for cell in cells_of(NOTEBOOKS / name) for x in cell.get("outputs", ())]


@pytest.mark.slow
@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
def test_runs(file, monkeypatch):
    nbformat, nbclient = pytest.importorskip("nbformat"), pytest.importorskip("nbclient")
    for name in ("ipykernel", "matplotlib"):
        pytest.importorskip(name)
    monkeypatch.setenv("LINATTN_TIMING_LENGTHS", "200,400")
    monkeypatch.setenv("LINATTN_STREAM_TOKENS", "200000")
    monkeypatch.setenv("LINATTN_STEPS", "50")
    book = nbformat.read(file, as_version=4)
    nbclient.NotebookClient(book, timeout=300, kernel_name="python3").execute()


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
def test_is_committed_with_outputs(file):
    cells = [x for x in cells_of(file) if x["cell_type"] == "code"]
    assert [x["execution_count"] for x in cells] == list(range(1, len(cells) + 1))
    outputs = [out for cell in cells for out in cell["outputs"]]
    assert any("image/png" in out.get("data", {}) for out in outputs)
    assert not any(out["output_type"] == "error" for out in outputs)
    assert file.stat().st_size < 300_000


def test_costs_are_measured_against_themselves():
    """Elu takes as long as elu."""
    text = "".join(x for out in outputs_of("feature_maps.ipynb") for x in out.get("text", ()))
    (row,) = (line for line in text.splitlines() if line.startswith("elu "))
    assert 0.9 <= float(row.split()[-3]) <= 1.1, row


def test_series_keep_their_colours():
    """Images of few colours still have one for each series, as the legends show them."""
    colours = pytest.importorskip("matplotlib.colors")
    images = pytest.importorskip("PIL.Image")
    found = []
    for out in outputs_of("experiments.ipynb"):
        if "image/png" in out.get("data", {}):
            with images.open(io.BytesIO(base64.b64decode(out["data"]["image/png"]))) as image:
                pixels = np.array(image.convert("RGB")).reshape(-1, 3)
            series = (np.round(255 * np.array(colours.to_rgb(f"C{i}"))) for i in range(8))
            areas = [int((pixels == colour).all(1).sum()) for colour in series]
            found.append(next((i for i, x in enumerate(areas) if x < 100), len(areas)))
    # copying, retrieval twice, models, Performers, draws, ListOps, time, images twice, rank, speech
    assert found == [4, 8, 8, 5, 3, 4, 8, 6, 4, 0, 2, 3]


def test_there_are_some():
    names = {"experiments", "fast_weights", "feature_maps", "gated", "pytorch", "quickstart",
             "scale", "scans", "streaming", "timing", "transformers"}  # fmt: skip
    assert {file.stem for file in FILES} >= names
