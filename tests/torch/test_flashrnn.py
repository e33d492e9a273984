"""The stand-in for flashrnn: sLSTM's states after each token, in any layout."""

import numpy as np
import pytest
import torch
from bounds import close, roundings
from mamba_cases import errors, normals
from slow import slow

import linattn.torch
from linattn import SLSTMState, reference
from linattn.torch.flashrnn import FlashRNNConfig, flashrnn

B, N, HEADS, D = 3, 9, 2, 5


def operands(dtype=torch.float64, seed=0):
    normal = normals(dtype, seed)
    states = normal(4, B, 1, HEADS, D)
    states[2] = states[2].abs() + 1
    R = normal(4, HEADS, D, D) / D
    return normal(B, N, 4, HEADS, D), R, normal(4, HEADS, D), states


def twin(Wx, R, b, states=None):
    """The states after each token (4, B, N, HEADS, D), by sequences of all lengths."""
    x, R, b = (y.double().numpy() for y in (Wx, R, b))
    start = None if states is None else SLSTMState(*states[:, :, 0].double().numpy())
    ends = [
        reference.slstm(x[:, :t], R, b, initial_state=start, return_state=True)[1]
        for t in range(1, N + 1)
    ]
    return np.stack([np.stack(end) for end in ends], 2)


@pytest.mark.parametrize("with_states", [False, True])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_all_states(dtype, with_states):
    given = operands(dtype)[: 3 + with_states]
    states, last = flashrnn(*given, function="slstm", backend="vanilla", dtype="float32")
    expected = twin(*given)
    assert states.dtype is dtype and last.shape == (4, B, 1, HEADS, D)
    close(states.numpy(), expected, roundings(256, 1 + abs(expected), dtype=states.numpy().dtype))
    assert torch.equal(last, states[:, :, -1:])


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_operands_of_16_bits_are_rounded_once(dtype):
    given = operands(dtype)
    states, last = flashrnn(*given, function="slstm")
    wide, _ = flashrnn(*(x.float() for x in given), function="slstm")
    assert torch.equal(states, wide.to(dtype)) and last.dtype is dtype


@pytest.mark.parametrize("with_states", [*slow(False), True])
def test_gradients(with_states):
    """Of all states, and through those before the first token."""
    Wx, R, b, states = operands()
    given = [Wx[:1, :4], R, b, states[:, :1]][: 3 + with_states]
    given = [x.requires_grad_() for x in given]
    assert torch.autograd.gradcheck(lambda *x: flashrnn(*x, function="slstm"), given)


def test_a_call_goes_on_where_another_ended():
    Wx, R, b, states = operands()
    whole, last = flashrnn(Wx, R, b, states, "slstm")
    first, middle = flashrnn(Wx[:, :4], R, b, states, "slstm")
    second, end = flashrnn(Wx[:, 4:], R, b, middle, "slstm")
    assert torch.equal(torch.cat((first, second), 2), whole) and torch.equal(end, last)
    nothing, same = flashrnn(Wx[:, :0], R, b, states, "slstm")
    assert nothing.shape == (4, B, 0, HEADS, D) and torch.equal(same, states)


def test_layouts():
    Wx, R, b, states = operands()
    expected = flashrnn(Wx, R, b, states, "slstm")
    config = FlashRNNConfig(
        function="slstm", input_shape="TBGHD", recurrent_shape="HPGD", bias_shape="HGD",
        output_shape="STBHD",
    )  # fmt: skip
    found = flashrnn(
        Wx.transpose(0, 1), R.permute(1, 3, 0, 2), b.transpose(0, 1), states.transpose(1, 2),
        config=config,
    )  # fmt: skip
    for x, y in zip(found, expected, strict=True):
        assert torch.equal(x, y.transpose(1, 2))


def test_initial_values():
    Wx, R, b, states = operands()
    values = [0.5, -1.0, 2.0, 0.25]
    states = torch.tensor(values, dtype=states.dtype).view(4, 1, 1, 1, 1).expand_as(states)
    expected, _ = flashrnn(Wx, R, b, states, "slstm")
    config = FlashRNNConfig(function="slstm", initial_val=values)
    assert torch.equal(flashrnn(Wx, R, b, config=config)[0], expected)


def test_sizes_of_a_configuration():
    for given in ({"hidden_dim": 12, "num_heads": 3}, {"num_heads": 3, "head_dim": 4},
                  {"hidden_dim": 12, "head_dim": 4}):  # fmt: skip
        config = FlashRNNConfig(function="slstm", dtype="float32", **given)
        assert (config.hidden_dim, config.num_heads, config.head_dim) == (12, 3, 4)
        assert config.input_dim == 48 and config.torch_dtype is torch.float32


def test_under_compile_and_vmap():
    Wx, R, b, states = operands(torch.float32)
    expected, _ = flashrnn(Wx, R, b, states, "slstm")

    def run(*given):
        return flashrnn(*given, function="slstm")[0]

    compiled = torch.compile(run, backend="aot_eager", fullgraph=True)
    assert torch.equal(compiled(Wx, R, b, states), expected)
    weights = torch.stack((R, 2 * R))
    both = torch.func.vmap(run, in_dims=(None, 0, None, None))(Wx, weights, b, states)
    assert torch.equal(both[0], expected)
    assert torch.equal(both[1], run(Wx, 2 * R, b, states))


GIVEN = operands()


def call(place, x, **more):
    """With another operand at a place."""
    given = [*GIVEN]
    given[place] = x
    return lambda: flashrnn(*given, **{"function": "slstm"} | more)


ERRORS = {
    "flashrnn: function is 'lstm'; expected 'slstm'": lambda: flashrnn(*GIVEN),
    "flashrnn: backend is 'tpu'; expected one of": call(0, GIVEN[0], backend="tpu"),
    "R has shape (4, 2, 5, 4); expected (4, 2, 5, 5)": call(1, GIVEN[1][..., :4]),
    "Wx has shape (3, 9, 2, 2, 5)": call(0, GIVEN[0][:, :, :2]),
    "states has shape (4, 3, 2, 5)": call(3, GIVEN[3][:, :, 0]),
    "flashrnn: b is None; expected a tensor": call(2, None),
    "FlashRNNConfig: gradient_recurrent_cut is": lambda: FlashRNNConfig(
        function="slstm", gradient_recurrent_cut=True
    ),
    "FlashRNNConfig: forward_clipval is": lambda: FlashRNNConfig(
        function="slstm", forward_clipval=1.0
    ),
    "bias_shape is 'GDD'; expected a permutation of 'GHD'": lambda: FlashRNNConfig(
        function="slstm", bias_shape="GDD"
    ),
}
test_errors = errors(ERRORS)


def test_as_the_package_itself():
    """Its plain PyTorch, whose layouts a model of TiRex has."""
    package = pytest.importorskip("flashrnn", reason="flashrnn is not installed")
    Wx, R, b, states = operands()
    given = Wx, R.permute(1, 3, 0, 2), b.transpose(0, 1)
    results = []
    for module in (package, linattn.torch.flashrnn):
        config = module.FlashRNNConfig(
            num_heads=HEADS, head_dim=D, backend="vanilla", function="slstm", dtype="float32",
            recurrent_shape="HPGD", bias_shape="HGD",
        )  # fmt: skip
        leaves = [x.clone().requires_grad_() for x in (*given, states)]
        made = module.flashrnn(*leaves[:3], states=leaves[3], config=config)
        total = sum((x * torch.linspace(-1, 1, x.numel()).view(x.shape)).sum() for x in made)
        results.append([*made, *torch.autograd.grad(total, leaves)])
    for x, y in zip(*results, strict=True):
        close(x.detach().numpy(), y.detach().numpy(), atol=1e-11)
