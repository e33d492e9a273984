"""Causal attention in other libraries, each with the fastest of its forms and chunk lengths."""

from __future__ import annotations

from functools import partial

from adapters import CHUNKS, FORMS, by_chunk

from linattn._cli.bench import MODES
from linattn._cli.peers import NumPy
from linattn._cli.rows import HEADS8, Row

#: What the compilers have to take at least: forward, forward + backward.
GOALS = {"torch.compile": (5.0, 4.0), "jax.jit": (5.0, 4.0)}
ROWS = [
    Row(f"{name} / linattn, {mode}", partial(by_chunk, peer, forms, CHUNKS, backward), HEADS8,
        [peer], GOALS.get(name, (None, None))[backward], least=True)
    for backward, mode in MODES for name, (peer, forms) in FORMS.items()
    if not (backward and peer is NumPy)
]  # fmt: skip
