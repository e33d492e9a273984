"""CONTRIBUTING's recipes, followed in a copy of the sources.

The map is ``square``, the recurrence ``fade``, whose new files and lines are in the folder
``recipe``; those of ``log_sum``, under a log scale, are in ``recipe_scaled``.
"""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import NamedTuple

from processes import output

from linattn._core import settings

ROOT = Path(__file__).resolve().parent.parent.parent
TEXTS, SCALED_TEXTS = (Path(__file__).parent / x for x in ("recipe", "recipe_scaled"))


SQUARE = """\
INLINE void
map_square(vec x[], const int n)
{
    LA_EACH(i, n) {
        x[i] *= x[i];
    }
}

INLINE vec
dphi_square(vec x, vec y)
{
    (void)y;
    return x + x;
}

"""


class Edit(NamedTuple):
    """Lines added to a file before the last line that begins with ``before``; "" for a new file."""

    file: str
    before: str
    text: str


def _new(file: str, text: str = "", texts: Path = TEXTS) -> Edit:
    return Edit(file, "", (texts / (text or Path(file).name)).read_text())


MAP = (
    Edit("src/kernel/maps.def", "LA_ROW_MAP(l2norm", "LA_MAP(square, 0)\n"),
    Edit("src/kernel/vectors/feature.h", "#define LA_MAP(", SQUARE),
    Edit(
        "linattn/reference/maps.py",
        '    "l2norm":',
        '    "square": Elementwise(lambda x: x * x, lambda x: 2 * x),\n',
    ),
)
RECURRENCE = (
    _new("src/kernel/recurrences/fade.h"),
    _new("src/kernel/recurrences/fade_backward.h"),
    _new("src/kernel/steps/fade_step.h"),
    Edit(
        "src/kernel/kernels.c",
        '#include "recurrences/gated.h"',
        '#include "recurrences/fade.h"\n#include "recurrences/fade_backward.h"\n',
    ),
    Edit("src/kernel/kernels.c", '#include "steps/gated', '#include "steps/fade_step.h"\n'),
    Edit(
        "src/kernel/operators.def",
        "/* the short convolution",
        (TEXTS / "operators.def").read_text(),
    ),
    Edit("src/kernel/operands.def", "LA_INPUT(bonus", (TEXTS / "operands.def").read_text()),
    _new("linattn/operators/fade.py"),
    Edit(
        "linattn/operators/__init__.py",
        '    "fused": "fused',
        '    "fade": "fade fade_backward fade_step",\n',
    ),
    Edit(
        "linattn/__init__.py",
        '    "feature_maps"',
        '    "fade",\n    "fade_backward",\n    "fade_step",\n',
    ),
    _new("linattn/reference/fade.py", "fade_twin.py"),
    Edit(
        "linattn/reference/__init__.py",
        "from .fused import",
        "from .fade import fade, fade_backward, fade_step\n",
    ),
    Edit(
        "linattn/reference/__init__.py",
        '    "fused_gated_delta_step"',
        '    "fade",\n    "fade_backward",\n    "fade_step",\n',
    ),
)
#: A recurrence whose state has a log scale, without a twin.
SCALED_RECURRENCE = (
    _new("src/kernel/recurrences/log_sum.h", texts=SCALED_TEXTS),
    Edit(
        "src/kernel/kernels.c",
        '#include "recurrences/gated.h"',
        '#include "recurrences/log_sum.h"\n',
    ),
    Edit(
        "src/kernel/operators.def",
        "/* the short convolution",
        (SCALED_TEXTS / "operators.def").read_text(),
    ),
    _new("linattn/operators/log_sum.py", texts=SCALED_TEXTS),
    Edit(
        "linattn/operators/__init__.py",
        '    "mlstm": "mlstm',
        '    "log_sum": "log_sum log_sum_backward log_sum_step",\n',
    ),
    Edit(
        "linattn/__init__.py",
        '    "mlstm"',
        '    "log_sum",\n    "log_sum_backward",\n    "log_sum_step",\n',
    ),
)


def text_of(recipe: str) -> str:
    """What CONTRIBUTING says under a heading, such as "A recurrence"."""
    _, _, rest = (ROOT / "CONTRIBUTING.md").read_text().partition(f"**{recipe}**")
    return rest.partition("\n**")[0].partition("\n## ")[0]


def copy_sources(folder: Path) -> None:
    """The files that a build and the tests read, without what a build makes."""
    files = "setup.py", "pyproject.toml", "README.md", "LICENSE"
    made = shutil.ignore_patterns("*.so", "*.pyc", "__pycache__")
    for name in ("linattn", "src", "tests", "tools"):
        shutil.copytree(ROOT / name, folder / name, ignore=made)
    for name in files:
        shutil.copy(ROOT / name, folder / name)


def follow(folder: Path, edits: tuple[Edit, ...]) -> None:
    for file, before, text in edits:
        target = folder / file
        if not before:
            assert not target.exists(), file
            target.write_text(text)
            continue
        lines = target.read_text().splitlines(keepends=True)
        place = max(i for i, line in enumerate(lines) if line.startswith(before))
        target.write_text("".join([*lines[:place], text, *lines[place:]]))


def run(folder: Path, *command: str) -> str:
    """The output of a program of the copy, which is built for one instruction set."""
    isa = settings.available_isas()[-1]
    return output(*command, cwd=folder, PYTHONPATH=str(folder), LINATTN_ISAS=isa)
