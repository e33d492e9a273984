"""The programs in examples/ run, and do what they print."""

import importlib.util
import os
import re
import shutil
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
from processes import output, python
from slow import slow

import linattn

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
#: The extensions that call linattn.h, by folder.
MODULES = {"c_extension": "attend", "cython_extension": "attend_cython"}


def test_all_are_run():
    found = {x.name for x in EXAMPLES.iterdir()} - {"__pycache__"}
    assert found == {"train_and_generate.py", *MODULES}


@pytest.mark.slow
def test_train_and_generate(tmp_path):
    """The loss falls, and the model that is loaded is the one that was saved."""
    torch = pytest.importorskip("torch")
    program, saved = EXAMPLES / "train_and_generate.py", tmp_path / "model.pt"
    options = "--model", saved, "--steps", "25", "--prompt", "def build"
    printed = output(program, *options, timeout=300)
    losses = [float(x) for x in re.findall(r"loss (\S+)", printed)]
    assert len(losses) == 2 and losses[-1] < 0.9 * losses[0], losses
    *_, text = re.split(r"step 25: .*\n", printed, maxsplit=1)
    assert text.startswith("def build") and len(text.rstrip("\n")) > len("def build")

    spec = importlib.util.spec_from_file_location("train_and_generate", program)
    example = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(example)
    model, characters = example.load(saved)
    weights = torch.load(saved, weights_only=True)["weights"]
    assert all(torch.equal(x, weights[name]) for name, x in model.state_dict().items())
    assert example.encode("def", characters).tolist() == [characters.index(x) for x in "def"]


def build(folder, place, header=None):
    """The file of an example's module, compiled in `place`, with the linattn.h of a folder."""
    pytest.importorskip("setuptools")
    if shutil.which(os.environ.get("CC", "cc").split()[0]) is None:
        pytest.skip("there is no C compiler")
    if folder == "cython_extension":
        pytest.importorskip("Cython")
    shutil.copytree(EXAMPLES / folder, place, dirs_exist_ok=True)
    flags = "-Wall" if header is None else f"-I{header}"
    run = python("setup.py", "-q", "build_ext", "--inplace", cwd=place, CFLAGS=flags)
    assert run.returncode == 0 and "warning" not in run.stderr, run.stderr[-3000:]
    (file,) = [x for x in place.glob(f"{MODULES[folder]}.*") if x.suffix in (".so", ".pyd")]
    return file


def load(folder, file):
    spec = importlib.util.spec_from_file_location(MODULES[folder], file)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("folder", ["c_extension", *slow("cython_extension")])
def test_extension(folder, tmp_path):
    """It has linattn's bits, from several threads at once, and passes its errors on."""
    attend = load(folder, build(folder, tmp_path))
    rng = np.random.default_rng(0)
    q, k, v = rng.standard_normal((3, 4, 5, 300, 24), dtype=np.float32)
    g = -rng.random((4, 5, 300), dtype=np.float32)
    o = np.full((2, 4, *v[0].shape), np.nan, np.float32)

    def work(i):
        attend.causal(q[i], k[i], v[i], o[0, i])
        attend.gated(q[i], k[i], v[i], g[i], o[1, i])

    for _ in range(5):
        o[...] = np.nan
        with ThreadPoolExecutor(4) as pool:
            list(pool.map(work, range(4)))
        np.testing.assert_array_equal(o[0], linattn.causal(q, k, v))
        np.testing.assert_array_equal(o[1], linattn.gated(q, k, v, g))
    for wrong in (o[0, 0, :4], o[0, 0, :, :5]):
        with pytest.raises(ValueError, match="the shapes of the operands do not match"):
            attend.causal(q[0], k[0], v[0], wrong)


@pytest.mark.parametrize("version", [*slow((0, 0), (1, 1)), (2, 0)])
def test_another_version_is_an_import_error(version, tmp_path):
    header = Path(linattn.get_include(), "linattn.h").read_text(encoding="utf-8")
    for name, number in zip(("MAJOR", "MINOR"), version, strict=True):
        header, count = re.subn(rf"(#define LINATTN_API_{name}) \d+", rf"\1 {number}", header)
        assert count == 1
    (tmp_path / "linattn.h").write_text(header, encoding="utf-8")
    file = build("c_extension", tmp_path / "module", header=tmp_path)
    expected = (
        rf"compiled for version {version[0]}\.{version[1]} of linattn's C interface; the installed "
        r"linattn has version 1\.0$"
    )
    with pytest.raises(ImportError, match=expected):
        load("c_extension", file)


def test_no_interface_is_an_import_error(tmp_path, monkeypatch):
    file = build("c_extension", tmp_path)
    monkeypatch.delattr("linattn._linattn._C_API")
    with pytest.raises(ImportError, match="the installed linattn has no C interface"):
        load("c_extension", file)
