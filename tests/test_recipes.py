"""CONTRIBUTING's recipe for a map, followed in a copy of the sources; what names maps names all."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from linattn import _config

ROOT = Path(__file__).resolve().parent.parent
#: File: what is looked for there, and what is written before it.
SQUARE = {
    "src/kernel/maps.def": ("LA_ROW_MAP(l2norm, 1)", "LA_MAP(square, 0)\n"),
    "src/kernel/feature.h": (
        "#endif\n",
        """INLINE vec
phi_square(vec x)
{
    return x * x;
}

INLINE vec
dphi_square(vec x, vec y)
{
    (void)y;
    return x + x;
}

""",
    ),
    "linattn/_reference_maps.py": (
        '    "l2norm": L2Norm(),\n',
        '    "square": Elementwise(lambda x: x * x, lambda x: 2 * x),\n',
    ),
}
TESTS = (
    "test_backward.py", "test_causality.py", "test_delta.py", "test_delta_rules.py",
    "test_feature_maps.py", "test_forward.py", "test_gated.py", "test_gated_delta.py",
    "test_gated_rules.py", "test_mapped.py", "test_mapped_rescaled.py", "test_numerics.py",
    "test_packed.py", "test_recipes.py", "test_reference.py", "test_segments.py", "test_state.py",
    "test_step.py", "test_twin.py", "test_ufuncs.py",
)  # fmt: skip


def run(folder, *command):
    done = subprocess.run(
        [sys.executable, *command], cwd=folder, capture_output=True, text=True, check=False,
        env={**os.environ, "PYTHONPATH": str(folder), "LINATTN_ISAS": _config.available_isas()[-1]},
    )  # fmt: skip
    assert done.returncode == 0, f"{command}\n{done.stdout[-5000:]}\n{done.stderr[-5000:]}"
    return done.stdout


@pytest.mark.slow
def test_a_map(tmp_path):
    """Added as CONTRIBUTING says, it passes the tests of every map."""
    files = "setup.py", "pyproject.toml", "README.md", "LICENSE"
    for name in ("linattn", "src", "tests", "tools", *files):
        copy = shutil.copytree if (ROOT / name).is_dir() else shutil.copy
        copy(ROOT / name, tmp_path / name)
    for file in (tmp_path / "linattn").glob("*.so"):
        file.unlink()
    recipe = (ROOT / "CONTRIBUTING.md").read_text().partition("**A map of one number**")[2]
    recipe = recipe.partition("\n**")[0]
    for file, (where, text) in SQUARE.items():
        assert f"`{file}`" in recipe
        old = (tmp_path / file).read_text()
        assert old.count(where) >= 1, file
        head, mark, tail = old.rpartition(where)
        (tmp_path / file).write_text(head + text + mark + tail)
    run(tmp_path, "setup.py", "-q", "build_ext", "--inplace")
    run(tmp_path, "-m", "linattn", "selftest")
    tests = [f"tests/{name}" for name in TESTS]
    run(tmp_path, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-k", "square or not [", *tests)
