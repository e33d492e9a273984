"""The README's Python blocks run as one doctest, and its commands exist."""

import re
from pathlib import Path

from pages import run_python

README = Path(__file__).resolve().parents[2] / "README.md"
TEXT = README.read_text(encoding="utf-8")


def test_python_blocks(threads):  # one of them sets the number
    assert run_python(README) > 5


def test_links_lead_somewhere():
    local = [link for link in re.findall(r"\]\(([^)#]+)", TEXT) if "://" not in link]
    assert local
    assert [link for link in local if not (README.parent / link).exists()] == []
