"""Runs of the experiments at a tiny size, and what they refuse."""

import contextlib
import importlib

import pytest


def run(name, out, *more):
    return importlib.import_module(name).run(["--size", "tiny", "--out", str(out), *more])


def refused(match, name, out, *more):
    with pytest.raises(SystemExit, match=match):
        run(name, out, *more)


OTHER = "of another configuration"


@contextlib.contextmanager
def interrupted(owner, function, at):
    """Ctrl-C in a call of a function, counted from 1; the list has an item for each call."""
    plain, calls = getattr(owner, function), []

    def counted(*args, **options):
        calls.append(args)
        if len(calls) == at:
            raise KeyboardInterrupt
        return plain(*args, **options)

    with pytest.MonkeyPatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(owner, function, counted)
        yield calls


def same_rows(one, other):
    """But for the time that they took."""
    for x, y in zip(one, other, strict=True):
        assert {**x, "seconds": 0} == {**y, "seconds": 0}
