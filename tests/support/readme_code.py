"""Print the code of README's Python blocks, for type checkers."""

import doctest
from pathlib import Path

from pages import blocks

README = Path(__file__).resolve().parents[2] / "README.md"

if __name__ == "__main__":
    code = "\n".join(blocks(README.read_text(encoding="utf-8"), "python"))
    examples = doctest.DocTestParser().get_examples(code)
    print("".join(example.source for example in examples), end="")
