"""The README's python blocks, run as one doctest; and the commands it promises."""

import doctest
import re
from pathlib import Path

README = Path(__file__).resolve().parent.parent / "README.md"
TEXT = README.read_text(encoding="utf-8")


def test_python_blocks(threads):  # one of them sets the number
    blocks = re.findall(r"^```python\n(.*?)^```$", TEXT, flags=re.M | re.S)
    assert all(block.startswith(">>> ") for block in blocks), "a block that nothing would run"
    code = doctest.DocTestParser().get_doctest("\n".join(blocks), {}, README.name, README.name, 0)
    result = doctest.DocTestRunner().run(code)
    assert result.attempted > 5
    assert result.failed == 0


def test_links_lead_somewhere():
    local = [link for link in re.findall(r"\]\(([^)#]+)", TEXT) if "://" not in link]
    assert local
    assert [link for link in local if not (README.parent / link).exists()] == []
