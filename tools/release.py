"""What a release needs besides its files: a tag that is the version, and a bill of materials.

python tools/release.py check v0.1.0
python tools/release.py sbom dist > linattn.cdx.json
"""

from __future__ import annotations

import hashlib
import json
import re
import sys
import tomllib
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent


def found(file: str, pattern: str) -> str:
    """What the pattern's group matches in a file of the repository; "" if nothing."""
    match = re.search(pattern, (ROOT / file).read_text(encoding="utf-8"), flags=re.M)
    return match[1] if match else ""


def version() -> str:
    return found("linattn/_version.py", r'^__version__ = "(.*)"$')


def wrong(tag: str) -> list[str]:
    """What does not agree with the version, a line each."""
    number = version()
    expected = {
        "the tag": (tag, f"v{number}"),
        "CITATION.cff": (found("CITATION.cff", r"^version: (.*)$"), number),
        "CHANGELOG.md's first section": (found("CHANGELOG.md", r"^## \[(.*?)\]"), number),
    }
    return [f"{x} is {y}; expected {z}" for x, (y, z) in expected.items() if y != z]


def sbom(folder: Path) -> dict[str, Any]:
    """A bill of materials in CycloneDX's form: the files of a release, and what they depend on."""
    with open(ROOT / "pyproject.toml", "rb") as settings:
        project = tomllib.load(settings)["project"]
    itself = {
        "type": "library",
        "bom-ref": "linattn",
        "name": "linattn",
        "version": version(),
        "purl": f"pkg:pypi/linattn@{version()}",
        "licenses": [{"license": {"id": project["license"]}}],
    }
    needed = [
        {"type": "library", "bom-ref": name, "name": name, "purl": f"pkg:pypi/{name}"}
        for name in dict.fromkeys(re.split(r"[^\w-]", x)[0] for x in project["dependencies"])
    ]
    files = [
        {
            "type": "file",
            "bom-ref": file.name,
            "name": file.name,
            "hashes": [
                {"alg": "SHA-256", "content": hashlib.sha256(file.read_bytes()).hexdigest()}
            ],
        }
        for file in sorted(folder.iterdir())
    ]
    return {
        "bomFormat": "CycloneDX",
        "specVersion": "1.6",
        "version": 1,
        "metadata": {"component": itself},
        "components": [*needed, *files],
        "dependencies": [{"ref": "linattn", "dependsOn": [x["bom-ref"] for x in needed]}],
    }


def main() -> str | None:
    match sys.argv[1:]:
        case ["check", tag]:
            return "\n".join(wrong(tag)) or None
        case ["sbom", folder]:
            print(json.dumps(sbom(Path(folder)), indent=2))
            return None
    return __doc__


if __name__ == "__main__":
    sys.exit(main())
