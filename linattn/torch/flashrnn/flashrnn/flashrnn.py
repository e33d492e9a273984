"""`flashrnn`: recurrent networks whose gates see the output before; of them, sLSTM."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from ..._core.conversions import promotion, work_dtype
from ...fla._layout import check_shape, check_tensor
from .._operator import STATES

__all__ = ["FlashRNNConfig", "flashrnn"]

BACKENDS = "vanilla", "vanilla_fwbw", "cuda", "cuda_fused", "triton_fused"
DTYPES = "bfloat16", "float16", "float32", "float64"
#: What letters of layouts stand for.
AXES = {
    "B": "batch", "T": "time", "G": "gates", "S": "states", "H": "heads", "D": "head_dim",
    "P": "head_dim before",
}  # fmt: skip
#: The layouts that `linattn.torch.slstm` has.
INPUT, WEIGHTS, BIAS, OUTPUT = "BTGHD", "GHDP", "GHD", "BTSHD"


@dataclass
class FlashRNNConfig:
    """What `flashrnn` computes, and the layouts of its operands.

    Layouts consist of the letters of batch, time, gates (i, f, z, o), heads, channels (D), channels
    of the output before (P), and states (h, c, n and m).

    Parameters
    ----------
    backend : str
        Has no effect.
    function : str
        ``"slstm"``; linattn lacks the others, of which "lstm" is the default as in flashrnn.
    gradient_recurrent_cut, gradient_recurrent_clipval, forward_clipval : bool, float, float
        Cut gradients and clipped values, which linattn lacks: False and None.
    constants, simple_agg
        Have no effect.
    hidden_dim, num_heads, head_dim : int
        Of which each follows from the others.
    num_states, num_gates_r, num_gates_w, num_gates_i, num_gates_t, batch_size
        Have no effect.
    input_shape, output_shape, recurrent_shape, bias_shape : str
        Permutations of "BTGHD", "SBTHD", "GHDP" and "GHD".
    dtype, dtype_acc, dtype_b, dtype_r, dtype_w, dtype_g, dtype_s, dtype_a
        Have no effect.
    enable_automatic_mixed_precision, trainable_r, trainable_b
        Have no effect.
    initial_val : float or sequence of float
        What all states begin with, or each.
    """

    backend: str = "cuda_fused"
    function: str = "lstm"
    gradient_recurrent_cut: bool = False
    gradient_recurrent_clipval: float | None = None
    forward_clipval: float | None = None
    constants: Mapping[str, float] | None = None
    simple_agg: bool = True
    hidden_dim: int = -1
    num_heads: int = -1
    head_dim: int = -1
    num_states: int = 4
    num_gates_r: int = 4
    num_gates_w: int = 4
    num_gates_i: int = 4
    num_gates_t: int = 4
    batch_size: int = 8
    input_shape: str = "BTGHD"
    output_shape: str = "SBTHD"
    recurrent_shape: str = "GHDP"
    bias_shape: str = "GHD"
    dtype: str = "bfloat16"
    dtype_acc: str | None = "float32"
    dtype_b: str | None = None
    dtype_r: str | None = None
    dtype_w: str | None = None
    dtype_g: str | None = None
    dtype_s: str | None = None
    dtype_a: str | None = None
    enable_automatic_mixed_precision: bool = True
    trainable_r: list[bool] | bool = True
    trainable_b: list[bool] | bool = True
    initial_val: float | Sequence[float] = 0.0

    def __post_init__(self) -> None:
        name = "FlashRNNConfig"
        if self.num_heads <= 0:
            self.num_heads = self.hidden_dim // self.head_dim if self.head_dim > 0 else 1
        if self.head_dim <= 0:
            self.head_dim = self.hidden_dim // self.num_heads
        if self.hidden_dim <= 0:
            self.hidden_dim = self.num_heads * self.head_dim
        _check_choice(name, "function", self.function, ("slstm",))
        _check_choice(name, "backend", self.backend, BACKENDS)
        _check_choice(name, "dtype", self.dtype, DTYPES)
        for field in ("gradient_recurrent_cut", "gradient_recurrent_clipval", "forward_clipval"):
            nothing = False if field == "gradient_recurrent_cut" else None
            _check_choice(name, field, getattr(self, field), (nothing,))
        for field, letters in (
            ("input_shape", INPUT), ("recurrent_shape", WEIGHTS), ("bias_shape", BIAS),
            ("output_shape", "SBTHD"),
        ):  # fmt: skip
            x = getattr(self, field)
            if not isinstance(x, str) or sorted(x) != sorted(letters):
                raise ValueError(f"{name}: {field} is {x!r}; expected a permutation of {letters!r}")

    @property
    def input_dim(self) -> int:
        return self.num_gates_w * self.hidden_dim

    @property
    def torch_dtype(self) -> torch.dtype:
        found: torch.dtype = getattr(torch, self.dtype)
        return found


def flashrnn(
    Wx: Tensor,
    R: Tensor,
    b: Tensor,
    states: Tensor | None = None,
    function: str = "lstm",
    config: FlashRNNConfig | None = None,
    backend: str = "cuda_fused",
    dtype: str = "bfloat16",
) -> tuple[Tensor, Tensor]:
    """sLSTM as flashrnn has it: all states after each token.

    Parameters
    ----------
    Wx : Tensor, (batch, time, 4, heads, head_dim)
        What the tokens add to the gates, in the order i, f, z, o.
    R : Tensor, (4, heads, head_dim, head_dim)
        Recurrent weights: rows are gates, columns outputs before the token.
    b : Tensor, (4, heads, head_dim)
        Biases.
    states : Tensor, (4, batch, 1, heads, head_dim), optional
        The states before the first token: h, c, n and m.
    function : str
        ``"slstm"``, unless ``config`` is given.
    config : FlashRNNConfig, optional
        Has, besides, the layouts of operands and results.
    backend, dtype : str
        Have no effect: operands are computed in their own dtype, 16-bit ones in float32.

    Returns
    -------
    states : Tensor, (4, batch, time, heads, head_dim)
        h, c, n and m after each token, of the dtype of Wx.
    last : Tensor, (4, batch, 1, heads, head_dim)
        Those after the last one.

    Raises
    ------
    TypeError
        If an operand is not a tensor, or not on the CPU.
    ValueError
        If shapes do not match, or the function is another one.

    Notes
    -----
    As `linattn.torch.slstm`: gradients are exact, also through the states.  A sequence with
    n = 0 begins by itself, where flashrnn compares the states of the whole batch with zeros.  It
    raises n to 1 at least, which has no effect on the states that it returns, as their n is 1 or
    more; here a state with an n below 1 is continued as it is.

    Examples
    --------
    >>> import torch
    >>> from linattn.torch.flashrnn import flashrnn
    >>> Wx, R, b = torch.zeros(1, 3, 4, 2, 8), torch.zeros(4, 2, 8, 8), torch.zeros(4, 2, 8)
    >>> states, last = flashrnn(Wx, R, b, function="slstm")
    >>> states.shape, last.shape
    (torch.Size([4, 1, 3, 2, 8]), torch.Size([4, 1, 1, 2, 8]))
    >>> states[2, 0, :, 0, 0]  # n
    tensor([1.0000, 1.5000, 1.7500])
    """
    if config is None:
        _check_choice("flashrnn", "function", function, ("slstm",))
        _check_choice("flashrnn", "backend", backend, BACKENDS)
        config = FlashRNNConfig(function=function)
    x = _permuted("Wx", Wx, config.input_shape, INPUT)
    batch, n, _, heads, d = x.shape
    sizes = {"B": batch, "T": n, "G": 4, "S": 4, "H": heads, "D": d, "P": d}
    _check_sizes("Wx", Wx, config.input_shape, sizes)
    R = _permuted("R", R, config.recurrent_shape, WEIGHTS)
    b = _permuted("b", b, config.bias_shape, BIAS)
    _check_sizes("R", R, WEIGHTS, sizes)
    _check_sizes("b", b, BIAS, sizes)
    if states is None:
        start = _initial(config, x)
    else:
        _check_sizes("states", states, config.output_shape, sizes | {"T": 1})
        start = _permuted("states", states, config.output_shape, OUTPUT)
    work = work_dtype(promotion((x.dtype, R.dtype, b.dtype)))
    y = STATES(*(z.to(work) for z in (x, R, b, start[:, 0])))
    last = y[:, -1:] if n else start
    return tuple(
        z.to(x.dtype).permute([OUTPUT.index(c) for c in config.output_shape]) for z in (y, last)
    )  # type: ignore[return-value]


def _initial(config: FlashRNNConfig, x: Tensor) -> Tensor:
    """The states of all sequences before their first tokens, in the layout OUTPUT."""
    first = torch.as_tensor(config.initial_val, dtype=x.dtype).expand(4)[:, None, None]
    return first.expand(x.shape[0], 1, 4, *x.shape[3:])


def _permuted(argument: str, x: Any, letters: str, wanted: str) -> Tensor:
    """x, with axes in the order ``letters``, in the order ``wanted``."""
    check_tensor("flashrnn", argument, x)
    if x.ndim != len(letters):
        raise ValueError(
            f"flashrnn: {argument} has shape {tuple(x.shape)}; expected {_names(letters)}"
        )
    permuted: Tensor = x.permute([letters.index(c) for c in wanted])
    return permuted


def _check_sizes(argument: str, x: Any, letters: str, sizes: Mapping[str, int]) -> None:
    check_shape("flashrnn", argument, x, tuple(sizes[c] for c in letters), _names(letters))


def _names(letters: str) -> str:
    return f"({', '.join(AXES[c] for c in letters)})"


def _check_choice(name: str, argument: str, x: Any, choices: tuple[Any, ...]) -> None:
    if x not in choices:
        expected = repr(choices[0]) if len(choices) == 1 else f"one of {[*choices]}"
        raise ValueError(f"{name}: {argument} is {x!r}; expected {expected}")
