"""Blocks of the xlstm package, run by linattn on CPUs.

Its cells for CPUs are a loop over tokens (sLSTM) and a matrix of all pairs of tokens (mLSTM).
`linattn.torch.patch_xlstm` replaces what they compute: the method ``forward`` of the sLSTM cell,
and the two functions that an mLSTM cell calls, which it has as attributes.

The package's layouts: gates (batch, tokens, 4 heads d) in the order i, f, z, o; recurrent weights
(heads, 4 d, d), rows as in `linattn.slstm`; biases (4 heads d); a state (4, batch, heads d) of h,
c, n and m.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from .._core.checks import wrong_shape
from .._states.state_arrays import SLSTMState, State
from ._patch.patching import Library, Patch, Place, for_cpus, own, parameters
from .operators import mlstm, mlstm_step, slstm

_CELLS = "xlstm.blocks.slstm.cell", "xlstm.blocks.mlstm.cell"


def patch_xlstm() -> Patch:
    """Make blocks and models of the xlstm package compute with linattn on CPUs.

    sLSTM cells with ``backend="vanilla"`` and the function ``"slstm"``, and mLSTM cells; forward,
    backward, and steps.  Models that are already built are patched as well.  Calls with a tensor on
    another device go to the package's own functions.  A function whose signature differs from that
    of xlstm 2.0 is not patched, with a warning.

    Returns
    -------
    Patch
        ``undo()`` restores all functions.  So does leaving it as a context, unless xlstm was
        patched before or another context, in any thread, is still active.

    Raises
    ------
    ImportError
        If xlstm is not installed.

    Notes
    -----
    An mLSTM of n tokens takes memory in proportion to n, not to its square.  Its eps, 1e-6, is
    relative to a running maximum that begins at 0, as in the package's steps.  An sLSTM's states
    may be zeros for some sequences of a batch: each begins by itself, where the package compares
    the states of all of them with zeros.

    Examples
    --------
    >>> import linattn.torch
    >>> with linattn.torch.patch_xlstm():  # doctest: +SKIP
    ...     logits = model(tokens)
    """
    for name in _CELLS:
        try:
            importlib.import_module(name)
        except ImportError as error:
            raise ImportError(
                f"linattn.torch.patch_xlstm needs {error.name}: pip install xlstm"
            ) from error
    return Patch(LIBRARY)


# --- what replaces the package's functions ----------------------------------------------------


def _slstm_forward(self: Any, input: Any, state: Any = None, lengths: Any = None) -> Any:
    config = self.config
    if config.function != "slstm":
        return NotImplemented
    self._check_input(input)
    heads, d = config.num_heads, config.head_dim
    x = input.unflatten(-1, (config.num_gates, heads, d))
    if config.input_shape == "SBGNH":
        x = x.transpose(0, 1)
    R = self._recurrent_kernel.view(heads, config.num_gates, d, d).transpose(0, 1)
    b = self._bias.view(config.num_gates, heads, d)
    start = None
    if state is not None:
        shape = config.num_states, x.shape[0], config.hidden_size
        if state.shape != shape:
            raise wrong_shape("sLSTMCell_vanilla", "state", state, shape)
        start = SLSTMState(*state.unflatten(-1, (heads, d)))
    h, last = slstm(x, R, b, initial_state=start, return_state=True)
    output = _arranged(h, config.output_shape)
    after = torch.stack(last).flatten(-2)
    if torch.is_autocast_enabled():
        return output, after
    return output.to(input.dtype), after.to(input.dtype)


def _arranged(h: Tensor, shape: str) -> Tensor:
    """(batch, tokens, heads, d) as the cell's configuration names it."""
    if shape == "BNSH":
        return h.transpose(1, 2)
    if shape == "BSH":
        return h.flatten(-2)
    h = h.transpose(0, 1)
    return h if shape == "SBNH" else h.flatten(-2)


def _parallel(
    queries: Tensor, keys: Tensor, values: Tensor, igate_preact: Tensor, fgate_preact: Tensor,
    lower_triangular_matrix: Any = None, stabilize_rowwise: bool = True, eps: float = 1e-6,
    **kwargs: Any,
) -> Any:  # fmt: skip
    i, f = igate_preact.squeeze(-1), fgate_preact.squeeze(-1)
    return mlstm(queries, keys, values, i, f, eps=eps)


def _recurrent_step(
    c_state: Tensor, n_state: Tensor, m_state: Tensor, q: Tensor, k: Tensor, v: Tensor,
    igate_preact: Tensor, fgate_preact: Tensor, eps: float = 1e-6, **kwargs: Any,
) -> Any:  # fmt: skip
    wide = torch.promote_types(q.dtype, torch.float32)
    start = State(
        c_state.to(wide), n_state.squeeze(-1).to(wide), m_state.squeeze((-1, -2)).to(wide)
    )
    k = k * k.shape[-1] ** -0.5  # as the package's states have it
    q, k, v = (x.squeeze(-2) for x in (q, k, v))
    i, f = (x.squeeze((-1, -2)) for x in (igate_preact, fgate_preact))
    h, (c, n, m) = mlstm_step(q, k, v, i, f, start, scale=1.0, eps=eps)
    return h.unsqueeze(-2), (
        c.to(q.dtype), n.unsqueeze(-1).to(q.dtype), m[..., None, None].to(q.dtype)
    )  # fmt: skip


# --- replacing --------------------------------------------------------------------------------


class _Backend:
    """The attribute of an mLSTM cell that holds a function, with ours in place of the package's."""

    def __init__(self, name: str, original: Any, ours: Callable[..., Any]) -> None:
        self._name, self._original, self._ours = name, original, ours

    def __get__(self, cell: Any, kind: type | None = None) -> Any:
        if cell is None:
            return self
        found = vars(cell).get(self._name)
        return self._ours if found is self._original else found

    def __set__(self, cell: Any, value: Any) -> None:
        vars(cell)[self._name] = self._original if value is self._ours else value


def _put() -> None:
    done = {x.name for x in LIBRARY.places}
    slstms, mlstms = map(importlib.import_module, _CELLS)
    cell: Any = getattr(slstms, "sLSTMCell_vanilla", None)
    name = f"{_CELLS[0]}.sLSTMCell_vanilla.forward"
    if name not in done and _is_known(name, getattr(cell, "forward", None), _slstm_forward):
        ours = for_cpus(cell.forward, _slstm_forward)
        LIBRARY.replace(Place(cell, "forward", name, own(cell, "forward"), ours))
    for attribute, function, ours in (
        ("backend_fn", "parallel_stabilized_simple", _parallel),
        ("backend_fn_step", "recurrent_step_stabilized_simple", _recurrent_step),
    ):
        cell, original = getattr(mlstms, "mLSTMCell", None), getattr(mlstms, function, None)
        name = f"{_CELLS[1]}.{function}"
        if name not in done and _is_known(name, original, ours):
            backend = _Backend(attribute, original, for_cpus(original, ours))
            LIBRARY.replace(Place(cell, attribute, name, own(cell, attribute), backend))


LIBRARY = Library("xlstm", _put)


def _is_known(name: str, original: Any, ours: Callable[..., Any]) -> bool:
    """Whether the package's function has the known signature; warns if it has not."""
    found = None if original is None else parameters(original)
    known = parameters(ours)
    if found == known:
        return True
    problem = "is not found" if found is None else f"takes ({', '.join(found)})"
    LIBRARY.warn(name, f" {problem}; expected ({', '.join(known)})", stacklevel=7)
    return False
