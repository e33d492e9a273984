"""The site: `make docs`.  Nothing is fetched, neither here nor by who reads it."""

from __future__ import annotations

import os
import shutil
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent
sys.path[:0] = [str(ROOT), str(ROOT / "benchmarks"), str(HERE)]

import gufuncs  # noqa: E402
import plots  # noqa: E402

import linattn  # noqa: E402

project = "linattn"
author = "linattn developers"
copyright = author
version = release = linattn.__version__

extensions = [
    "myst_nb",
    "numpydoc",
    "sphinx.ext.autodoc",
    "sphinx.ext.autosummary",
    "sphinx_copybutton",
    "sphinx_design",
    "sphinx-mathjax-offline",
]
exclude_patterns = ["_build"]
templates_path = ["_templates"]
default_role = "py:obj"  # names in docstrings are `linattn.causal`

# Every name in backticks has to be documented somewhere; those of others cannot be looked up.
nitpicky = True
nitpick_ignore_regex = [("py:.*", r"(numpy|np|jax|torch|xarray|sys)\..*")]

autodoc_typehints = "none"  # docstrings say what they take
autodoc_default_options = {"members": True, "member-order": "bysource"}
autosummary_ignore_module_all = False
numpydoc_show_class_members = False
#: Sections known and in order; parameters those of the signature, in its order, and described.
numpydoc_validation_checks = {"GL06", "GL07", "PR02", "PR03", "PR06", "PR07", "PR09", "PR10"}

myst_enable_extensions = ["amsmath", "attrs_block", "colon_fence", "deflist", "dollarmath"]
myst_heading_anchors = 3
nb_execution_mode = "off"  # notebooks are committed with their outputs
copybutton_prompt_text = r">>> |\.\.\. |\$ "
copybutton_prompt_is_regexp = True

html_theme = "pydata_sphinx_theme"
html_title = "linattn"
html_sidebars = {name: [] for name in ("ten_minutes", "choosing", "changes")}  # no sections
html_static_path = ["_static"]
html_css_files = ["site.css"]
html_show_sourcelink = False
html_copy_source = False
html_context = {"default_mode": "auto"}  # light or dark as the reader's system is
html_theme_options = {
    "logo": {"text": "linattn"},
    "header_links_before_dropdown": 7,  # the others are under "More"
    "navbar_align": "left",
    "navbar_persistent": ["search-button"],
    "footer_start": ["copyright"],
    "footer_end": [],
    "secondary_sidebar_items": ["page-toc"],
    "show_toc_level": 2,
    "navigation_with_keys": False,
    "pygments_light_style": "a11y-high-contrast-light",
    "pygments_dark_style": "a11y-high-contrast-dark",
}
#: The repository, where GitHub builds the site; a clone does not say where it is published.
if repository := os.environ.get("GITHUB_REPOSITORY"):
    server = os.environ.get("GITHUB_SERVER_URL", "https://github.com")
    html_theme_options["icon_links"] = [
        {"name": "Repository", "url": f"{server}/{repository}", "icon": "fa-brands fa-github"}
    ]


def generate(app) -> None:
    """What pages are made of that stands elsewhere: notebooks, recorded figures, gufuncs."""
    for name in ("notebooks", "plots"):
        (HERE / name).mkdir(exist_ok=True)
    for notebook in (ROOT / "notebooks").glob("*.ipynb"):
        shutil.copyfile(notebook, HERE / "notebooks" / notebook.name)
    plots.draw_all(HERE / "plots")
    gufuncs.write(HERE / "reference" / "generated" / "gufuncs.txt")


def setup(app) -> None:
    app.connect("builder-inited", generate, priority=100)  # before autosummary looks for pages
