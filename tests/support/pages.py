"""Code blocks of Markdown pages, and a runner for those in Python."""

import doctest
import re


def blocks(text, language):
    """The contents of a page's blocks in a language."""
    return re.findall(rf"^```{language}\n(.*?)^```$", text, flags=re.M | re.S)


def run_python(file):
    """Run a page's blocks as one doctest; return the number of examples."""
    code = blocks(file.read_text(encoding="utf-8"), "python")
    assert all(block.startswith(">>> ") for block in code), "a block that nothing would run"
    test = doctest.DocTestParser().get_doctest("\n".join(code), {}, file.name, file.name, 0)
    result = doctest.DocTestRunner().run(test)
    assert result.failed == 0
    return result.attempted
