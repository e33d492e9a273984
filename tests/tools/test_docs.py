"""The documentation: its code runs, and its reference lists every public name."""

import ast
import importlib
import importlib.util
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from pages import blocks, run_python
from processes import start
from slow import grid

ROOT = Path(__file__).resolve().parents[2]
DOCS = ROOT / "docs"
PAGES = sorted(x for x in DOCS.rglob("*.md") if not {"_build", "generated"} & {*x.parts})
TEXTS = {str(x.relative_to(DOCS)): x.read_text(encoding="utf-8") for x in PAGES}
LANGUAGES = {"python", "sh"}
OPTIONAL = ("torch", "transformers", "fla", "jax", "dask", "threadpoolctl", "onnxruntime")


def pages_with(language):
    return [name for name, text in TEXTS.items() if blocks(text, language)]


def test_languages():
    """A block is Python, which runs; a shell's, which runs; or what Sphinx or MyST reads."""
    for name, text in TEXTS.items():
        for language in re.findall(r"^```([^\s`].*)$", text, flags=re.M):
            assert language in LANGUAGES or language.startswith("{"), (name, language)


#: These export models, run workers or import other libraries for several seconds.
LONG = {f"howto/{x}.md" for x in ("onnx", "fla", "clusters", "transformers")}


@grid(lambda name: name not in LONG, name=pages_with("python"))
def test_python_blocks(name, threads):  # some set the number
    needed = re.findall(r"^>>> (?:import|from) (?:linattn\.)?(\w+)", TEXTS[name], flags=re.M)
    for module in {*needed} & {*OPTIONAL}:
        if importlib.util.find_spec(module) is None:
            pytest.skip(f"{module} is not installed")
    run_python(DOCS / name)


NOT_RUN = ("pip install", "linattn timing", "linattn bench", "make compare")
#: Its commands build, debug and measure, in the root of a clone.
OF_CLONES = "developing.md"


def commands():
    """Lines of shell blocks; what they install is there where tests run, and timing takes long."""
    for name in (x for x in pages_with("sh") if x != OF_CLONES):
        for block in blocks(TEXTS[name], "sh"):
            for line in block.splitlines():
                if not line.startswith(NOT_RUN) and "cd benchmarks" not in block:
                    yield pytest.param(line, id=f"{name}: {line}")


@pytest.mark.slow
@pytest.mark.parametrize("line", [*commands()])
def test_shell_blocks(line):
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    command = next(word for word in line.split() if "=" not in word)
    if shutil.which(command, path=path) is None:
        pytest.skip(f"there is no {command}")
    if "jax" in line:
        pytest.importorskip("jax")
    environment = {"PATH": path, "PYTHONPATH": str(ROOT)}
    run = start("bash", "-c", line, cwd=DOCS / "programs", timeout=300, **environment)
    assert run.returncode == 0, run.stderr[-3000:]
    assert run.stdout


def functions_in(file):
    """The names of a module's functions, classes and methods, or of a C file's functions."""
    text = file.read_text(encoding="utf-8")
    if file.suffix != ".py":
        return {*re.findall(r"^(\w+)\(", text, flags=re.M)}
    tree = ast.parse(text)
    kinds = ast.FunctionDef | ast.ClassDef
    classes = [x for x in tree.body if isinstance(x, ast.ClassDef)]
    names = {x.name for x in tree.body if isinstance(x, kinds)}
    return names | {f"{x.name}.{y.name}" for x in classes for y in x.body if isinstance(y, kinds)}


def test_the_way_of_a_call_names_what_exists():
    text = TEXTS["developing.md"]
    named = re.findall(r"`((?:src|linattn)/[\w/]+\.(?:py|c|h))(?:(?:::|: )([\w.]+))?`", text)
    assert sum(bool(name) for _, name in named) > 20
    for path, name in named:
        assert (ROOT / path).exists(), path
        assert not name or name in functions_in(ROOT / path), (path, name)
    for folder in re.findall(r"`((?:src|linattn|tests|tools)/[\w/]+)`", text):
        assert (ROOT / folder).is_dir(), folder


def test_one_version_of_torch():
    """Every page that installs PyTorch installs what the README names."""
    install = re.compile(r"pip install (\S+) --index-url https://download.pytorch.org")
    (named,) = {*install.findall((ROOT / "README.md").read_text(encoding="utf-8"))}
    found = {name: {*install.findall(text)} for name, text in TEXTS.items()}
    found = {name: versions for name, versions in found.items() if versions}
    assert len(found) >= 5
    assert all(versions == {named} for versions in found.values()), found


def test_programs_run():
    """Each that a page shows is started by a shell block; a batch job's is at least a script."""
    shown = {x for text in TEXTS.values() for x in re.findall(r"programs/(\S+)", text)}
    assert shown == {x.name for x in (DOCS / "programs").iterdir() if x.is_file()}
    started = "\n".join(line.values[0] for line in commands())
    for name in shown:
        if name.endswith(".sh"):
            subprocess.run(["bash", "-n", DOCS / "programs" / name], check=True)
        else:
            assert name in started, name


def test_benchmarks_are_there():
    named = {x for text in TEXTS.values() for x in re.findall(r"^python (\w+\.py)", text, re.M)}
    programs = {
        x.name for folder in ("benchmarks", "docs/programs") for x in (ROOT / folder).iterdir()
    }
    assert named and named <= programs


GATED = "Gated recurrences"
IN_BLOCKS = "Tokens in blocks"
MAPS = "Feature maps, Linformer and softmax attention"
MODELS = "Models of Transformers, 1 thread(s)"
QWEN = "Qwen3.5-0.8B: library / linattn, "
STATE = "States, decoding and packed sequences"
#: What pages say, and the recorded figure that it begins with.
QUOTED = [
    ("ten_minutes.md", "8.4 times as\nlong", "Peers", "NumPy BLAS / linattn, forward"),
    ("choosing.md", "1.42 of", "Delta rule", "delta / causal, both identity, unnormalised"),
    ("choosing.md", "1.16 of", GATED, "gated / causal, d = 64"),
    ("choosing.md", "1.32 with", GATED, "gated by channel / causal, d = 64"),
    ("choosing.md", "1.13 of", GATED, "gated_delta / delta, d = 64"),
    ("choosing.md", "1.26 with", GATED, "gated_delta by channel / delta, d = 64"),
    ("choosing.md", "1.61 of", GATED, "dplr / delta, d = 64"),
    ("choosing.md", "1.71 with", GATED, "dplr by channel / delta, d = 64"),
    ("choosing.md", "1.05 to", IN_BLOCKS, "causal in blocks of 32 / without"),
    ("choosing.md", "1.40 times", IN_BLOCKS, "gated in blocks of 4 / without"),
    ("performance.md", "1.05 (", IN_BLOCKS, "causal in blocks of 32 / without"),
    ("howto/blocks.md", "1.05 (", IN_BLOCKS, "causal in blocks of 32 / without"),
    ("howto/blocks.md", "1.23 (", IN_BLOCKS, "delta in blocks of 4 / without"),
    ("howto/blocks.md", "3.2 times", IN_BLOCKS, "PyTorch by blocks of 32 / causal"),
    ("howto/blocks.md", "6.7 times", IN_BLOCKS, "PyTorch by blocks of 4 / causal"),
    ("choosing.md", "8.3 times", MODELS, f"{QWEN}operator, forward, 2,048 tokens"),
    ("choosing.md", "1.28 times", MODELS, f"{QWEN}prefill of 2,048"),
    ("choosing.md", "0.44 of", MAPS, "softmax_attention, causal=True / PyTorch's SDPA"),
    ("choosing.md", "2.14 times", MAPS, "causal, 64 positive random features / elu"),
    ("choosing.md", "2.64 times", MAPS, "causal_backward, 64 positive random features / elu"),
    ("performance.md", "1.5 times", "Core figures", "NumPy, bare products q @ (k^T @ v) / causal"),
    ("performance.md", "1.9 times", "Core figures",
     "NumPy, bare products q @ (k^T @ v) / noncausal"),
    ("performance.md", "1.69 times", "Threads", "causal, one head of N = 262,144: 1 thread / 2"),
    ("performance.md", "1.09 times", "Core figures",
     "causal, (B, N, H, d) view / contiguous (B, H, N, d), Zen 4"),
    ("howto/transformers.md", "1.28 and", MODELS, f"{QWEN}prefill of 2,048"),
    ("howto/transformers.md", "1.18 times", MODELS, f"{QWEN}training step of 512"),
    ("howto/transformers.md", "4.1 and", MODELS, "Mamba 130M: library / linattn, prefill of 2,048"),
    ("howto/transformers.md", "5.9; for", MODELS,
     "Mamba 130M: library / linattn, training step of 128"),
    ("howto/transformers.md", "2.1 and", MODELS, "Mamba 2.8B: library / linattn, prefill of 1,024"),
    ("howto/transformers.md", "13.3. In", MODELS,
     "Mamba 2.8B: library / linattn, training step of 128"),
    ("howto/mamba.md", "41.5 times", "Scans",
     "selective_scan_ref / selective_scan_fn, forward, m = 1,536, r = 16, n = 256"),
    ("howto/mamba.md", "10.3 times", "Scans", "Mamba-3, loop over tokens / linattn, forward"),
    ("howto/mamba.md", "37.1 times", "Scans",
     "Mamba-3, loop over tokens / linattn, forward + backward"),
    ("howto/mamba.md", "2.9 and", "Scans", "Mamba-3, chunks of 64 / linattn, forward"),
    ("choosing.md", "4.1 times", MODELS, "Mamba 130M: library / linattn, prefill of 2,048"),
    ("performance.md", "3.7 µs", "Core figures", "causal on (4, 8) arrays, beside np.matmul"),
    ("performance.md", "3.9 µs", STATE, "step of 8 heads in place, beside np.copyto"),
    ("howto/decoding.md", "3.9 µs", STATE, "step of 8 heads in place, beside np.copyto"),
    ("howto/packed.md", "1.01, ", STATE,
     "64 packed sequences of 1,000 to 8,000 / one of as many tokens"),
]  # fmt: skip


@pytest.fixture
def plots(monkeypatch):
    pytest.importorskip("matplotlib")
    monkeypatch.syspath_prepend(ROOT / "benchmarks")
    return importlib.import_module("plots")


@pytest.mark.parametrize(("page", "quote", "section", "row"), QUOTED)
def test_quoted_figures(page, quote, section, row, plots):
    """They are those that RESULTS.md records now, or these ratios the other way around."""
    assert quote in TEXTS[page]
    (median,) = (x[1] for x in plots.table(plots.section(section)) if x[0] == row)
    value, unit = median.split()
    values = [float(value)] + [1 / float(value)] * (unit == "x")
    number = re.match(r"\d+\.\d+", quote)[0]
    digits = len(number.split(".")[1])
    assert number in {f"{x:.{digits}f}" for x in values}


@pytest.mark.parametrize(
    "name", ["linattn", "linattn.feature_maps", "linattn.torch", "linattn.torch.nn"]
)
def test_reference_is_complete(name):
    """Modules whose functions are listed by name; of others all are taken."""
    if name.startswith("linattn.torch"):
        pytest.importorskip("torch")
    module = importlib.import_module(name)
    pages = [x.read_text(encoding="utf-8") for x in (DOCS / "reference").glob("*.rst")]
    (page,) = (x for x in pages if x.startswith(f"{name}\n"))
    listed = {*re.findall(r"^   (\w+)$", page, flags=re.M)}
    elsewhere = {
        "FusedState", "NAMES", "SLSTMState", "State", "__version__", "feature_maps", "fla",
        "install_as", "mamba_ssm", "nn", "patch_fla", "patch_transformers", "patch_xlstm",
        "patched", "ufuncs",
    }  # fmt: skip
    assert {*module.__all__} - elsewhere <= listed


def test_each_section_has_a_card():
    """The first page shows all that the bar at the top has, but for the changelog."""
    text = TEXTS["index.md"]
    _, _, tree = text.partition("```{toctree}\n:hidden:\n\n")
    pages = {re.sub(r".*<(.*)>", r"\1", line) for line in tree.split("\n```")[0].splitlines()}
    assert {*re.findall(r"^:link: (\S+)$", text, flags=re.M)} == pages - {"changes"}
    assert text.index("## Install") < text.index("{grid-item-card}")


@pytest.mark.slow
def test_plots(tmp_path, plots):
    """Each is drawn from the recorded figures, twice."""
    plots.draw_all(tmp_path)
    drawn = {x.name for x in tmp_path.iterdir()}
    shown = {x for text in TEXTS.values() for x in re.findall(r"plots/(\S+\.svg)", text)}
    assert shown == drawn == {f"{x}-{y}.svg" for x in plots.FIGURES for y in ("light", "dark")}
