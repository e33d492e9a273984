"""Calls that cannot be exported."""

from __future__ import annotations


class NotExportedError(NotImplementedError):
    """A call that has no form in ONNX, named with what to do instead."""


def unsupported(function: str, given: str, instead: str) -> NotExportedError:
    return NotExportedError(
        f"linattn.torch.onnx: {function} with {given} cannot be exported; expected {instead}"
    )
