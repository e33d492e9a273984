"""In a clone: whether the built module is that of the sources."""

from __future__ import annotations

import os
import warnings


def warn_if_older(built: str | None, sources: str) -> None:
    """Warn if a file of the C sources was changed after the module was built."""
    if built is None or not os.path.exists(built):
        return
    made = os.path.getmtime(built)
    for folder, _, files in os.walk(sources):
        for file in files:
            if file.endswith((".c", ".h", ".def")):
                source = os.path.join(folder, file)
                if os.path.getmtime(source) > made:
                    warnings.warn(
                        f"linattn: {os.path.realpath(source)} is newer than the built module "
                        f"{built}; run `make build` in the clone",
                        stacklevel=3,
                    )
                    return
