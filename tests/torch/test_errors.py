"""What linattn.torch refuses, and the errors that say so."""

import contextlib
import re
import tomllib
from pathlib import Path

import numpy as np
import pytest
import torch
import torch_cases as cases
from processes import output
from torch_cases import (
    EACH,
    assert_same,
    call,
    leaves,
    make,
)

import linattn
import linattn.torch as la


@EACH
@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
def test_wrong_tensors(row):
    """Those of no plain numbers too: float8, which nothing computes in, and both nested layouts."""
    operands = make(row)
    for name, x in operands.items():
        wrong = [
            (x.to(torch.complex64), ".*real numbers"), (x.to_sparse(), ".*to_dense"),
            (x.numpy(), ".*expected a tensor"),
            (x.to(torch.float8_e4m3fn), r"has dtype torch\.float8_e4m3fn"),
            *((torch.nested.nested_tensor([x, x], layout=layout), "is a nested tensor")
              for layout in (torch.strided, torch.jagged)),
        ]  # fmt: skip
        for y, words in wrong[row.name == "linear_scan" :]:  # it takes complex tensors
            with pytest.raises(TypeError, match=f"{row.name}: {name} {words}"):
                call(la, row, operands | {name: y})


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
def test_nested_tensors_in_states_and_maps():
    x = torch.ones(5, 4)
    nested = torch.nested.nested_tensor([x, x[:2]])
    for call_of in (
        lambda: la.initial_state(nested, nested, nested),
        lambda: la.causal(nested, x, x, return_state=True),
        lambda: la.causal(nested, x, x, feature_map=torch.square, key_lengths=3),
        lambda: la.step(x[0], x[0], x[0], la.State(nested, x[0])),
        lambda: la.feature_maps.get("dpfp")(nested),
    ):
        with pytest.raises(TypeError, match="is a nested tensor; expected a plain one"):
            call_of()


def test_quantised_and_meta_tensors():
    q = torch.quantize_per_tensor(torch.ones(2, 3), 0.1, 0, torch.qint8)
    with pytest.raises(TypeError, match=r"causal: q is quantised.*dequantize"):
        la.causal(q, torch.ones(2, 3), torch.ones(2, 3))
    x = torch.empty(2, 7, 3, device="meta")
    assert la.causal(x, x, x).shape == (2, 7, 3)


@pytest.mark.parametrize("in_place", [False, True])
def test_compiled_steps_on_two_devices(in_place):
    """The message names the function, not the operator that graphs call."""
    x = torch.ones(3)
    state = la.initial_state(x, x, x, operator="step")
    compiled = torch.compile(la.step, backend="eager")
    with pytest.raises(Exception, match=r"\bstep: v is on meta and q on cpu"):
        compiled(x, x, x.to("meta"), state, in_place=in_place)


def test_wrong_shapes_and_options():
    x = torch.ones(5, 3)
    with pytest.raises(ValueError, match=r"causal: k has shape \(5, 4\)"):
        la.causal(x, torch.ones(5, 4), x)
    with pytest.raises(TypeError, match="causal: scale is"):
        la.causal(x, x, x, scale=torch.tensor(1.0, requires_grad=True))
    with pytest.raises(ValueError, match="feature_map is 'nosuch'"):
        la.causal(x, x, x, feature_map="nosuch")
    with pytest.raises(TypeError, match="feature_map is 3"):
        la.causal(x, x, x, feature_map=3)
    with pytest.raises(TypeError, match=r"step: state is None; .*linattn\.initial_state"):
        la.step(x[0], x[0], x[0], None)
    for maker in (la.feature_maps.Taylor, linattn.feature_maps.Taylor):
        with pytest.raises(TypeError, match=r"feature_map is .*such as Taylor\(\)"):
            la.causal(x, x, x, feature_map=maker)
    with pytest.raises(TypeError, match="feature_map is <class"):
        la.causal(x, x, x, feature_map=torch.nn.ReLU)
    with pytest.raises(TypeError, match=r"key_lengths has dtype torch\.float32"):
        la.causal(x, x, x, key_lengths=torch.tensor(2.0))
    with pytest.raises(TypeError, match="initial_state is a Tensor"):
        la.causal(x, x, x, initial_state=x)
    s = torch.zeros(3, 3)
    for wrong, what in (((s,), "tuple of 1"), ((), "tuple of 0"), ([s, s[0]], "list")):
        with pytest.raises(TypeError, match=rf"initial_state is a {what}; expected a linattn\.St"):
            la.causal(x, x, x, initial_state=wrong)
    with pytest.raises(TypeError, match=r"initial_state\.s is a NoneType; expected a tensor"):
        la.causal(x, x, x, initial_state=la.State(None))
    with pytest.raises(ValueError, match="z is given"):
        la.delta(x, x, x, torch.ones(5), initial_state=linattn.State(torch.ones(3, 3), x[0]))
    state = linattn.State(torch.zeros(3, 3), torch.zeros(3))
    with pytest.raises(RuntimeError, match="in_place is True and an operand requires grad"):
        la.step(x[0].clone().requires_grad_(), x[0], x[0], state, in_place=True)


def test_arrays_refuse_tensors_with_gradients():
    """The NumPy functions would lose the graph."""
    x = torch.ones(5, 3)
    assert linattn.causal(x, x, x).shape == (5, 3)
    y = x.clone().requires_grad_()
    with pytest.raises(TypeError, match=r"causal: q requires grad.*linattn\.torch\.causal"):
        linattn.causal(y, x, x)
    with pytest.raises(TypeError, match=r"log_decay: A_log requires grad"):
        linattn.log_decay(np.ones(5), y[:, 0], 0.0)


@EACH
def test_negative_bits(row):
    """As of the imaginary part of a conjugate: operands have them, what is written has none."""

    def negative(tensors):
        return {name: torch.complex(x, -x).conj().imag for name, x in tensors.items()}

    def gradients(tensors):
        given = leaves(tensors)
        o = call(la, row, {name: torch._neg_view(-x) for name, x in given.items()})
        return torch.autograd.grad(torch._neg_view(o).square().sum(), list(given.values()))

    operands = make(row)
    assert_same(call(la, row, negative(operands)), call(la, row, operands))
    assert_same(tuple(gradients(operands)), tuple(gradients(negative(operands))))
    if not row.step:
        return
    given, state = cases.token(row, operands, 0), cases.state(row)
    expected = call(la, row, given, step=True, state=cases.pack(row, state))
    for in_place in (False, True):
        found = call(la, row, negative(given), step=True, state=cases.pack(row, state),
                     in_place=in_place)  # fmt: skip
        assert_same(found, expected)
    first, state = next(iter(state)), cases.pack(row, negative(state))
    for here in (contextlib.nullcontext(), torch.autograd.profiler.profile()):
        with here, pytest.raises(TypeError, match=f"step: {first} has the negative bit"):
            call(la, row, given, step=True, state=state, in_place=True)


def test_the_default_device_is_not_looked_at():
    """What a call makes for itself is where its operands are."""
    x, w, state = torch.ones(1, 6, 2, 4), torch.ones(4, 3), la.State(torch.ones(4, 4))
    row, token = x[0, :, 0], x[0, 0, 0]
    cuts, length = torch.tensor([0, 2, 6]), torch.tensor([1])
    layer = la.nn.LinearAttention(4, 2)

    @torch.no_grad()
    def calls():
        phi = {"feature_map": torch.square}
        yield la.causal(x, x, x, **phi, key_lengths=length)
        yield la.causal(x, x, x, **phi, key_lengths=[1])
        yield la.causal(row, row, row, cu_seqlens=[0, 2, 6])
        yield la.delta_step(token, token, token, 0.5, state)[0]
        yield la.log_decay(x, 1.0, 0.5)
        yield la.causal_conv1d(row, w, cu_seqlens=[0, 2, 6])
        yield la.fla.fused_recurrent_gla(x, x, x)[0]
        yield la.fla.fused_recurrent_simple_gla(x, x, x)[0]
        yield la.fla.fused_recurrent_gated_delta_rule(x, x, x, gk=-x)[0]
        yield la.fla.fused_recurrent_gated_delta_rule(x, x, x)[0]
        yield la.fla.chunk_retention(x, x, x)[0]
        yield la.fla.chunk_lightning_attn(x, x, x, 1, 4)[0]
        yield from la.fla.causal_conv1d(x[:, :, 0], w, output_final_state=True)
        yield from la.fla.causal_conv1d(x[:, :, 0], w, cu_seqlens=cuts, output_final_state=True)
        yield layer(x[:, :, 0], key_lengths=[3])

    expected = tuple(calls())
    with torch.device("meta"):
        found = tuple(calls())
    assert_same(found, expected)


OLDER = """
import torch
Version = type(torch.__version__)
torch.__version__ = Version({older!r})
try:
    import linattn.torch
except ImportError as error:
    print(error)
torch.__version__ = Version({same!r})
import linattn.torch
"""


@pytest.mark.slow
def test_older_versions_of_pytorch():
    """Below the version that pyproject.toml promises, importing the bridge says what it needs."""
    project = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text())["project"]
    extras = project["optional-dependencies"]
    (oldest,) = re.findall(r"torch>=(\d+\.\d+)", " ".join(extras["torch"]))
    assert not re.search(r"torch>=", " ".join(x for y in extras if y != "torch" for x in extras[y]))
    major, minor = map(int, oldest.split("."))
    older, same = f"{major}.{minor - 1}.1+cpu", f"{oldest}.0+cpu"
    told = output("-c", OLDER.format(older=older, same=same))
    expected = f"linattn.torch needs torch {oldest} or newer and found {older}: pip"
    assert told.startswith(expected)


@pytest.mark.parametrize("eps", ["x", None, 1j, [1.0], torch.ones((), requires_grad=True)], ids=str)
@pytest.mark.parametrize("gradient", [False, True])
@pytest.mark.parametrize("block", [None, 2])
def test_no_real_number(eps, gradient, block):
    """The words are those of NumPy's functions, wherever the number is read."""
    q = torch.ones(4, 4, requires_grad=gradient)
    words = f"^causal: eps is {re.escape(repr(eps))}; expected a real number$"
    with pytest.raises(TypeError, match=words):
        la.causal(q, q, q, eps=eps, block=block)


def test_options_that_are_true_or_false():
    x, state = torch.ones(2, 3), la.State(torch.zeros(2, 3, 3), torch.zeros(2, 3))
    with pytest.raises(TypeError, match=r"^step: in_place is 'no'; expected True or False"):
        la.step(x, x, x, state, in_place="no")
    assert not state.s.any()
    with pytest.raises(TypeError, match=r"^causal: return_state is 1; expected True or False"):
        la.causal(x, x, x, return_state=1)
