"""The memory of tensors: resizable storage, sharded parameters, devices that differ."""

import numpy as np
import pytest
import torch
import torch.distributed as dist
import torch_cases as cases
from torch_cases import EACH, call, make

import linattn.torch as la
from linattn._linattn import tensor_array, tensor_call
from linattn.torch._core.direct import _SEEN, array

DTYPES = (
    torch.float16, torch.bfloat16, torch.float32, torch.float64, torch.int32, torch.int64,
    torch.bool,
)  # fmt: skip


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_arrays_share_memory(dtype):
    base = torch.arange(24).reshape(2, 3, 4).to(dtype)
    for x in (base, base.mT, base[:, ::2], base[0, 0, 0], base[:0], base[:1].expand(5, 3, 4)):
        found = array(x)
        np.testing.assert_array_equal(found.astype(np.float64), x.double().numpy())
        assert found.itemsize == x.element_size() and found.flags.writeable
        assert not x.numel() or found.ctypes.data == x.data_ptr()
    array(base)[0, 0, 0] = 1
    assert base[0, 0, 0] == 1


def test_arrays_keep_their_tensor():
    x = array(torch.full((1000,), 7.0))
    assert isinstance(x.base, torch.Tensor) and (x == 7).all()


BY_ATTRIBUTES = _SEEN[0], None, *_SEEN[2:]  #: as with a PyTorch that has no DLPack in C


@pytest.mark.parametrize("torch_", [_SEEN, BY_ATTRIBUTES], ids=["exchanged", "attributes"])
def test_arrays_of_memory(torch_):
    x = torch.arange(24.0).reshape(2, 3, 4)
    for y in (
        x, x[1], x[:, 1:, ::2], x.mT, x.sum(), x[:0], x[None, :, :0], torch.zeros(0),
        x[:1].expand(5, 3, 4), x.to(torch.bfloat16), x.to(torch.complex64), x.bool()[1:],
        torch.nn.Parameter(x), torch.arange(5)[3:], x.half().requires_grad_(),
    ):  # fmt: skip
        found = tensor_array(torch_, y)
        assert found.shape == y.shape and found.flags.writeable
        assert not y.numel() or found.ctypes.data == y.data_ptr()
        assert not y.numel() or found.strides == tuple(z * y.itemsize for z in y.stride())
        if y.dtype != torch.bfloat16:
            np.testing.assert_array_equal(found, y.detach().numpy())


@pytest.mark.parametrize("torch_", [_SEEN, BY_ATTRIBUTES], ids=["exchanged", "attributes"])
def test_no_array_of_no_memory(torch_):
    for x in (torch.ones(3, device="meta"), torch._efficientzerotensor(3),
              torch.complex(torch.ones(2), torch.ones(2)).conj().imag,
              torch.ones(2).to(torch.float8_e4m3fn), torch.ones(3).to_sparse()):  # fmt: skip
        with pytest.raises((TypeError, RuntimeError)):
            tensor_array(torch_, x)
    with pytest.raises(TypeError, match="another device"):
        tensor_array(torch_, torch.ones(3, device="meta"))


class Odd:
    """What says of itself that it is a tensor."""

    is_cpu, dtype = True, torch.float32

    def __init__(self, address, shape, strides):
        self.shape = shape
        self.data_ptr, self.stride = lambda: address, lambda: strides
        self.is_neg = lambda: False


def test_memory_that_is_refused():
    address = torch.ones(2, 3).data_ptr()
    for odd in (
        (1.5, (2, 3), (3, 1)), (address, (2, "3"), (3, 1)), (address, 6, (3, 1)),
        (0, (2, 3), (3, 1)),
    ):  # fmt: skip
        with pytest.raises(TypeError):
            tensor_array(_SEEN, Odd(*odd))
    with pytest.raises(IndexError):
        tensor_array(_SEEN, Odd(address, (2, 3), (3,)))
    with pytest.raises(ValueError, match="65 axes; expected at most 64"):
        tensor_array(_SEEN, Odd(address, (1,) * 65, (1,) * 65))
    assert tensor_array(_SEEN, Odd(0, (0, 3), (3, 1))).shape == (0, 3)


@pytest.mark.parametrize("args", [(), (1,) * 7, (_SEEN, None, len, [], {}, {})])
def test_calls_that_are_refused(args):
    with pytest.raises(TypeError, match="expected a tuple, a bool"):
        tensor_call(*args)


def test_calls_with_many_tensors():
    """More than are counted go to the operators of PyTorch."""

    def function(operands):
        return sum(operands)

    x = torch.ones(2)
    assert tensor_call(_SEEN, None, function, (x,) * 60, {}, {}).tolist() == [60, 60]
    assert tensor_call(_SEEN, False, function, (x,) * 70, {}, {}) is NotImplemented
    with pytest.raises(TypeError, match="operand"):
        tensor_call(_SEEN, None, function, (x,) * 70, {}, {})


def resizable(tensors):
    return all(x.untyped_storage().resizable() for x in tensors.values())


@EACH
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_tensors_stay_resizable(row, dtype):
    """numpy() would pin them: sharded training frees parameters by resizing."""
    operands = {name: x.requires_grad_() for name, x in make(row, dtype).items()}
    o = call(la, row, operands)
    grad = torch.ones_like(o)
    o.backward(grad)
    assert resizable(operands) and resizable({"grad": grad})
    for x in operands.values():
        x.untyped_storage().resize_(0)
    if row.step:
        token, state = cases.token(row, make(row), 0), cases.state(row)
        for in_place in (False, True):
            call(la, row, token, step=True, state=cases.pack(row, state), in_place=in_place)
        assert resizable(token) and resizable(state)


def test_directions_stay_resizable():
    x, omega = torch.ones(5, 4), torch.ones(4, 6)
    phi = la.feature_maps.PositiveRandomFeatures(omega)
    phi(x)
    la.causal(x, x, x, feature_map=phi, key_lengths=torch.tensor(3))
    assert resizable({"x": x, "omega": omega})


@pytest.fixture(scope="module")
def mesh():
    """A mesh of this process alone, which frees and gathers parameters as many do."""
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield torch.distributed.device_mesh.init_device_mesh("cpu", (1,))
    dist.destroy_process_group()


LAYERS = ("LinearAttention", "PerformerAttention", "FeedforwardKernelAttention", "GatedDeltaNet",
          "GatedAttention", "FastWeightAttention")  # fmt: skip


@pytest.mark.filterwarnings("ignore:FSDP2-wrapped module")
@pytest.mark.parametrize("name", LAYERS)
def test_sharded_layers(name, mesh):
    fsdp = pytest.importorskip("torch.distributed.fsdp")
    plain, sharded = (getattr(la.nn, name)(8, 2) for _ in range(2))
    sharded.load_state_dict(plain.state_dict())
    fsdp.fully_shard(sharded, mesh=mesh)
    x = torch.randn(2, 5, 8)
    for _ in range(2):  # what the first call freed is there for the second
        found, expected = sharded(x), plain(x)
        assert torch.equal(found, expected)
        found.square().sum().backward()
        expected.square().sum().backward()
    for a, b in zip(sharded.parameters(), plain.parameters(), strict=True):
        assert torch.equal(a.grad.full_tensor(), b.grad)


@pytest.mark.filterwarnings("ignore:FSDP2-wrapped module")
@pytest.mark.parametrize("family", ["mamba2", "qwen3_next", "bamba"])
def test_sharded_models_of_transformers(family, mesh):
    pytest.importorskip("transformers")
    fsdp = pytest.importorskip("torch.distributed.fsdp")
    from transformers_models import build

    model = build(family)
    tokens = torch.arange(1, 9)[None]
    with la.patch_transformers():
        expected = model(tokens).logits
        fsdp.fully_shard(model, mesh=mesh)
        for _ in range(2):
            found = model(tokens).logits
            assert torch.equal(found, expected)
            found.square().sum().backward()


def sides(tensors, name):
    """All on the meta device but for one, or the other way round."""
    yield tensors | {name: tensors[name].to("meta")}
    yield {x: y if x == name else y.to("meta") for x, y in tensors.items()}


@EACH
def test_one_device_for_all(row):
    """Operands without memory give shapes; among others they would give whatever memory holds."""
    operands = make(row)
    everywhere = {name: x.to("meta") for name, x in operands.items()}
    lengths = {x: y.to("meta") for x, y in row.options.items() if x == "key_lengths"}
    o = call(la, row, everywhere, **lengths)
    assert o.is_meta and o.shape == call(la, row, operands).shape
    says = rf"({row.name}|{row.step}): .*expected one device for all"
    for run, given in cases.forms(row):
        before = {name: x.clone() for name, x in given.items()}
        for name in given:
            for mixed in sides(given, name):
                with pytest.raises(TypeError, match=says):
                    run(mixed)
        assert all(torch.equal(x, before[name]) for name, x in given.items())


def test_one_device_for_operators_of_the_library():
    q = torch.ones(5, 4)
    with pytest.raises(TypeError, match=r"causal: k is on meta and q on cpu; expected one device"):
        torch.ops.linattn.causal(q, q.to("meta"), q, "elu", None, True, 1e-6, 1.0, None, None, None)
    with torch._subclasses.FakeTensorMode():
        q = torch.ones(5, 4)
        with pytest.raises(TypeError, match="expected one device"):
            torch.ops.linattn.causal(
                q, torch.ones(5, 4, device="cuda"), q, "elu", None, True, 1e-6, 1.0, None, None,
                None,
            )  # fmt: skip


def test_directions_of_arrays_are_on_no_device():
    x = torch.ones(5, 4, device="meta")
    phi = la.feature_maps.PositiveRandomFeatures.sample(4, 6, rng=1)
    assert phi(x).is_meta and la.causal(x, x, x, feature_map=phi).is_meta
    with pytest.raises(TypeError, match="omega is on cpu and q on meta"):
        given = la.feature_maps.PositiveRandomFeatures(torch.ones(4, 6))
        la.causal(x, x, x, feature_map=given)


@pytest.mark.parametrize("name", LAYERS)
def test_tensors_left_on_meta(name):
    """PyTorch's own products take them, and give whatever memory holds."""
    layer, x = getattr(la.nn, name)(8, 2), torch.ones(2, 5, 8)
    own = [*layer.named_parameters(), *layer.named_buffers()]
    for path, there in own:
        parent, _, leaf = path.rpartition(".")
        module = layer.get_submodule(parent)
        tensors = module._parameters if leaf in module._parameters else module._buffers
        tensors[leaf] = there.to("meta")
        for call_of in (layer, lambda x: layer.step(x[:, 0], layer.init_state(2))):
            if path != "out_proj.weight" or call_of is layer:  # which says where states are
                with pytest.raises((TypeError, RuntimeError), match="meta"):
                    call_of(x)
        tensors[leaf] = there
    assert layer.to("meta")(x.to("meta")).is_meta
