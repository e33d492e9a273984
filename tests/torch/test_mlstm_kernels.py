"""The stand-in for mlstm_kernels: every kernel by its name, states, and the backend module."""

import importlib

import numpy as np
import pytest
import torch
from bounds import close, roundings
from mamba_cases import errors, normals
from slow import slow

from linattn import State, reference
from linattn.torch import install_as
from linattn.torch.mlstm_kernels import torch as kernels
from linattn.torch.mlstm_kernels.torch.backend_module import (
    mLSTMBackend,
    mLSTMBackendConfig,
)

B, HEADS, N, D, M = 2, 3, 24, 5, 4
EPS = 1e-2  # large enough to matter
ALL = kernels.get_available_mlstm_kernels()
CHUNKS = [x for x in ALL if x.startswith("chunk") and "siging" not in x]
PARALLEL = [x for x in ALL if x.startswith("parallel") and "siging" not in x]
SIGMOID = [x for x in ALL if "siging" in x]
SEQUENCES = kernels.get_available_mlstm_sequence_kernels()
NATIVE = [x for x in ALL if "triton" not in x and "custbw" not in x]


def operands(dtype=torch.float64, states=True):
    normal = normals(dtype)
    q, k, v = normal(B, HEADS, N, D), normal(B, HEADS, N, D), normal(B, HEADS, N, M)
    i, f = 2 * normal(B, HEADS, N), normal(B, HEADS, N) + 2
    state = {
        "c_initial": normal(B, HEADS, D, M), "n_initial": normal(B, HEADS, D),
        "m_initial": normal(B, HEADS, 1),
    }  # fmt: skip
    return (q, k, v, i, f), state if states else {}


def twin(tokens, state, first=0.0):
    start = State(np.zeros((B, HEADS, D, M)), np.zeros((B, HEADS, D)),
                            np.full((B, HEADS), first))  # fmt: skip
    if state:
        c, n, m = (x.double().numpy() for x in state.values())
        start = State(c, n, m[..., 0])
    arrays = (x.double().numpy() for x in tokens)
    h, end = reference.mlstm(*arrays, eps=EPS, initial_state=start, return_state=True)
    return h, end.s, end.z, end.log_scale[..., None]


def sigmoid_twin(tokens, state, normalize):
    q, k, v, i, f = (x.numpy() for x in tokens)
    i, f = 1 / (1 + np.exp(-i)), 1 / (1 + np.exp(-f))
    c, n = (x.numpy() for x in (*state.values(),)[:2]) if state else (0.0, 0.0)
    h = np.empty(v.shape)
    for t in range(N):
        w = i[..., t, None]
        n = f[..., t, None] * n + w * k[..., t, :]
        c = f[..., t, None, None] * c + (w * k[..., t, :])[..., None] * v[..., t, None, :]
        sums = (q[..., t, :] * n).sum(-1, keepdims=True) / np.sqrt(D)
        h[..., t, :] = (q[..., t, None, :] @ c)[..., 0, :] / np.sqrt(D)
        if normalize:
            h[..., t, :] /= np.maximum(abs(sums), 1) + EPS
    return h, c, n


def check(found, expected, dtype=torch.float64, size=512):
    for x, y in zip(found, expected, strict=True):
        assert x.shape == y.shape
        own = x.numpy().dtype
        close(x.numpy(), y, roundings(size, 1 + abs(y), dtype=own))


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
@pytest.mark.parametrize("given", [False, True])
@pytest.mark.parametrize("name", [*ALL, *SEQUENCES])
def test_kernels(name, given, dtype):
    """From a state if it is given; sigmoid gates with a denominator if it is."""
    held, options = not name.startswith("parallel"), {"eps": EPS}
    if name in SEQUENCES:
        kernel, options["dtype_state"] = kernels.get_mlstm_sequence_kernel(name), dtype
    else:
        kernel = kernels.get_mlstm_kernel(name)
    options |= {"normalize": given} if name in SIGMOID else {}
    options |= {"chunk_size": 16} if name in CHUNKS else {}
    tokens, state = operands(dtype, states=held and given)
    h = kernel(*tokens, **state, **options)
    if name in SIGMOID:
        expected = sigmoid_twin(tokens, state, given)
    else:  # of the parallel ones the maximum begins with the first gate, and with it eps
        expected = twin(tokens, state, first=0.0 if held else -np.inf)
    check([h], expected[:1])
    if held:
        same, last = kernel(*tokens, **state, **options, return_last_states=True)
        check((same, *last), expected)
        assert torch.equal(same, h)
        assert all(x.dtype is dtype for x in (h, *last))


def test_the_first_maximum_matters():
    tokens, _ = operands()
    first, zero = (twin(tokens, {}, first=x)[0] for x in (-np.inf, 0.0))
    assert abs(first - zero).max() > 1e-6


@pytest.mark.parametrize("name", [*CHUNKS[:1], *slow(*PARALLEL[:1]), *SIGMOID[:1]])
def test_gradients(name):
    tokens, state = operands(states=not name.startswith("parallel"))
    names = [*state]
    given = [x[:1, :2, :4].requires_grad_() for x in tokens]  # two heads of one row are enough
    given += [x[:1, :2].requires_grad_() for x in state.values()]

    def run(*x):
        kernel = kernels.get_mlstm_kernel(name)
        more = {"return_last_states": True} if names else {}
        made = kernel(*x[:5], **dict(zip(names, x[5:], strict=True)), **more, eps=EPS)
        return (made[0], *made[1]) if names else made

    if "siging" in name:
        given, names = given[:7], names[:2]
    assert torch.autograd.gradcheck(run, given)


@pytest.mark.parametrize("name", kernels.get_available_mlstm_step_kernels())
def test_steps_go_on_where_sequences_end(name):
    tokens, state = operands()
    step, states = kernels.get_mlstm_step_kernel(name), tuple(state.values())
    rows = []
    for t in range(N):
        q, k, v = (x[:, :, t] for x in tokens[:3])
        i, f = (x[:, :, t : t + 1] for x in tokens[3:])
        before = [x.clone() for x in states]
        h, after = step(q, k, v, i, f, *states, eps=EPS, dtype_state=torch.float64)
        assert all(map(torch.equal, before, states))
        rows.append(h)
        states = after
    check((torch.stack(rows, 2), *states), twin(tokens, state))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_operands_of_16_bits(dtype):
    """States are of 32 bits unless another dtype is asked for."""
    tokens, state = operands(dtype)
    kernel = kernels.get_mlstm_kernel(CHUNKS[0])
    h, last = kernel(*tokens, **state, return_last_states=True)
    wide, _ = kernel(*(x.float() for x in tokens), **{n: x.float() for n, x in state.items()},
                     return_last_states=True)  # fmt: skip
    assert h.dtype is dtype and all(x.dtype is torch.float32 for x in last)
    assert torch.equal(h, wide.to(dtype))
    _, last = kernels.get_mlstm_sequence_kernel(SEQUENCES[0])(*tokens, return_last_states=True)
    assert all(x.dtype is torch.float32 for x in last)
    token = [x[:, :, 0] for x in tokens[:3]] + [x[:, :, :1] for x in tokens[3:]]
    h, last = kernels.get_mlstm_step_kernel("triton")(*token, *state.values(), dtype_state=dtype)
    assert all(x.dtype is dtype for x in (h, *last))


@pytest.mark.parametrize("n", [1, 2, N])
def test_inference_goes_on(n):
    """Of any number of tokens at a time."""
    tokens, _ = operands(torch.float32)
    backend = mLSTMBackend(mLSTMBackendConfig(mode="inference", eps=EPS))
    states, rows = {}, []
    for t in range(0, N, n):
        h, last = backend(*(x[:, :, t : t + n] for x in tokens), **states)
        states = dict(zip(("c_initial", "n_initial", "m_initial"), last, strict=True))
        rows.append(h)
    check((torch.cat(rows, 2), *last), twin(tokens, {}))


def test_training_modes():
    tokens, state = operands()
    config = mLSTMBackendConfig(mode="train", eps=EPS)
    backend = mLSTMBackend(config)
    h, last = backend(*tokens, **state)
    check((h, *last), twin(tokens, state))
    assert torch.equal(backend(*tokens, **state, return_last_states=False), h)
    padded = mLSTMBackend(
        mLSTMBackendConfig(mode="train_with_padding", return_last_states=False, eps=EPS)
    )
    assert torch.equal(padded(*tokens, **state), h)
    siging = mLSTMBackend(mLSTMBackendConfig(
        chunkwise_kernel="parallel--native_siging_autograd", return_last_states=False, eps=EPS,
        normalize_siging=False,
    ))  # fmt: skip
    check([siging(*tokens)], sigmoid_twin(tokens, {}, False)[:1])
    assert "mode='train'" in repr(backend) and backend.config_class is mLSTMBackendConfig


TOKENS, STATE = operands()
CHUNK = kernels.get_mlstm_kernel(CHUNKS[0])
ERRORS = {
    "get_mlstm_kernel: name is 'chunk'; expected one of": lambda: kernels.get_mlstm_kernel("chunk"),
    "get_mlstm_step_kernel: name is 'x'": lambda: kernels.get_mlstm_step_kernel("x"),
    "k has shape (2, 3, 24, 4); expected (2, 3, 24, 5), (B, NH, S, DHQK)": lambda: CHUNK(
        TOKENS[0], TOKENS[2], *TOKENS[2:]
    ),
    "m_initial has shape (2, 3); expected (B, NH, 1)": lambda: CHUNK(
        *TOKENS, **STATE | {"m_initial": STATE["m_initial"][..., 0]}
    ),
    "mlstm_chunkwise: i is None; expected a tensor": lambda: CHUNK(*TOKENS[:3], None, TOKENS[4]),
    "mlstm_parallel: c_initial is given; expected None": lambda: kernels.get_mlstm_kernel(
        PARALLEL[0]
    )(*TOKENS, **STATE),
    "return_last_states is True; expected False": lambda: kernels.get_mlstm_kernel(SIGMOID[-1])(
        *TOKENS, return_last_states=True
    ),
    "mLSTMBackendConfig: return_last_states is True; expected False with the mode": (
        lambda: mLSTMBackendConfig(mode="train_with_padding")
    ),
    "mLSTMBackendConfig: return_last_states is True; expected False with the kernel": (
        lambda: mLSTMBackendConfig(chunkwise_kernel=PARALLEL[0])
    ),
    "mLSTMBackend: mode is 'test'; expected": lambda: mLSTMBackend(mLSTMBackendConfig())(
        *TOKENS, mode="test"
    ),
}
test_errors = errors(ERRORS)


def test_names_and_results_of_the_package_itself():
    """Its plain PyTorch; its kernels with a backward pass of their own neglect the denominator."""
    pytest.importorskip("mlstm_kernels", reason="mlstm_kernels is not installed")
    package = importlib.import_module("mlstm_kernels.torch")
    named = {*package.get_available_mlstm_kernels()}
    assert named <= {*ALL} and {*NATIVE} <= named
    for name in NATIVE:
        parallel = name.startswith("parallel")
        tokens, state = operands(states=not parallel)
        more = {} if parallel else {"return_last_states": True, "chunk_size": 8}
        results = []
        for module in (package, kernels):
            leaves = [x.clone().requires_grad_() for x in (*tokens, *state.values())]
            states = dict(zip(state, leaves[5:], strict=True))
            made = module.get_mlstm_kernel(name)(*leaves[:5], **states, **more, eps=EPS)
            made = [made] if parallel else [made[0], *made[1]]
            total = sum((x * torch.linspace(-1, 1, x.numel()).view(x.shape)).sum() for x in made)
            results.append([*made, *torch.autograd.grad(total, leaves)])
        for x, y in zip(*results, strict=True):
            close(x.detach().numpy(), y.detach().numpy(), atol=1e-9 * (1 + y.abs().max().item()))


def test_models_of_xlstm():
    """The large model, by the stand-in alone."""
    pytest.importorskip("xlstm", reason="xlstm is not installed")
    with install_as("mlstm_kernels", replace=True):
        large = importlib.import_module("xlstm.xlstm_large.model")
        config = large.xLSTMLargeConfig(
            embedding_dim=32, num_heads=2, num_blocks=2, vocab_size=30, return_last_states=True,
            mode="inference", chunkwise_kernel="chunkwise--triton_xl_chunk",
            sequence_kernel="native_sequence__triton", step_kernel="triton",
        )  # fmt: skip
    torch.manual_seed(0)
    model = large.xLSTMLarge(config)
    ids = torch.randint(0, 30, (2, 11))
    with torch.no_grad():
        whole, _ = model(ids)
        first, state = model(ids[:, :10])
        last, _ = model(ids[:, 10:], state)
    close(torch.cat((first, last), 1).numpy(), whole.numpy(), atol=1e-5)
