"""The program that test_torch_distributed.py runs in several processes.

It ends with "all the same".
"""

import os

import pytest
import torch
import torch.distributed as dist
from bounds import close

import linattn
import linattn.torch as la
from linattn.torch import distributed

N, D, M = 26, 4, 5


def draw(*shape, seed=0):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def cases():
    q, k, v = draw(2, 3, N, D), draw(2, 3, N, D, seed=1), draw(2, 3, N, M, seed=2)
    g, by_channel = -draw(2, 3, N, seed=3).abs(), -draw(2, 3, N, D, seed=4).abs()
    beta, a, bonus = g.sigmoid(), draw(2, 3, N, D, seed=5) / 5, draw(D, seed=6)
    yield "causal", (q, k, v), {}
    yield "causal", (q, k, v), {"feature_map": "dpfp", "normalize": False}
    yield "noncausal", (q, k, v), {"scale": 0.5}
    yield "noncausal", (q, k, v), {"normalize": False, "feature_map": "relu"}
    yield "delta", (q, k, v, beta), {"feature_map": "l2norm"}
    yield "gated", (q, k, v, g), {}
    yield "gated", (q, k, v, by_channel), {"bonus": bonus}
    yield "gated_delta", (q, k, v, g, beta), {"feature_map": "l2norm"}
    yield "gated_delta", (q, k, v, by_channel, beta), {"erase": a}
    yield "dplr", (q, k, v, a, a, by_channel), {}
    unit = k / k.norm(dim=-1, keepdim=True)
    yield "momentum_delta", (q, unit, v, unit, g, 2 * g, beta, beta), {"scale": 0.5}
    yield "linear_scan", (by_channel, q), {"log": True}
    yield "linear_scan", (beta[..., None].expand(q.shape), q), {}
    yield "linear_scan", (by_channel, q), {"log": True, "reverse": True}
    rotation = torch.polar(beta, g)[..., None]
    yield "linear_scan", (rotation, torch.complex(q, k)), {}
    yield "linear_scan", (rotation.conj(), q), {"reverse": True}
    yield "mlstm", (q, k, v, 3 * draw(2, 3, N, seed=11), 3 * draw(2, 3, N, seed=12)), {}
    yield "mlstm", (q, k, v, 3 * draw(2, 3, N, seed=11), 3 * g), {"eps": 0.1, "normalize": False}
    yield "wkv", (3 * q, k, draw(D, seed=13).abs(), draw(D, seed=14)), {}
    dt, states = draw(2, 3, N, M, seed=7), -draw(2, 3, M, D, seed=8).abs()
    yield "selective_scan", (v, dt.sigmoid(), states, q, k), {}
    more = {"D": draw(M, seed=9), "z": dt, "dt_bias": draw(2, 3, M, seed=10), "softplus": True}
    yield "selective_scan", (v, dt, states, q, k), more


def stretch(x, rank, size):
    """This process's tokens."""
    if N not in x.shape:
        return x
    begin, end = (N * (rank + i) // size for i in (0, 1))
    return x.narrow(x.shape.index(N), begin, end - begin)


def leaves(operands, options, cut):
    tensors = [cut(x).clone().requires_grad_() for x in operands]
    more = {
        name: cut(x).clone().requires_grad_() if isinstance(x, torch.Tensor) else x
        for name, x in options.items()
    }
    return tensors, more, [*tensors, *(x for x in more.values() if isinstance(x, torch.Tensor))]


def compare(rank, size):
    for name, operands, options in cases():
        whole, more, whole_leaves = leaves(operands, options, lambda x: x)
        expected = getattr(la, name)(*whole, **more)
        expected.abs().square().sum().backward()
        mine, more, mine_leaves = leaves(operands, options, lambda x: stretch(x, rank, size))
        o = getattr(distributed, name)(*mine, **more)
        o.abs().square().sum().backward()
        close(o.detach(), stretch(expected, rank, size).detach(), atol=1e-12)
        for x, y in zip(mine_leaves, whole_leaves, strict=True):
            close(x.grad, stretch(y.grad, rank, size), atol=1e-11 * float(y.grad.abs().max()))


def beside_data_parallel(rank, size):
    """A layer wrapped for data parallelism, with all parameters on every process."""
    torch.manual_seed(0)
    layer = torch.nn.Linear(D, 3 * D).double()
    x = draw(2, N, D, seed=7)

    def loss(layer, x, causal):
        q, k, v = layer(x).chunk(3, -1)
        return causal(q, k, v).square().sum()

    loss(layer, x, la.causal).backward()
    expected = [p.grad.clone() for p in layer.parameters()]
    layer.zero_grad()
    parallel = torch.nn.parallel.DistributedDataParallel(layer)
    loss(parallel, stretch(x, rank, size), distributed.causal).backward()
    for p, y in zip(layer.parameters(), expected, strict=True):
        close(size * p.grad, y, atol=1e-11 * float(y.abs().max()))


def broken(x):
    raise ValueError("a map that cannot be applied")


def errors_of_one(rank):
    """If one process raises before the first exchange, no other process waits forever."""
    q = draw(2, 5, D)
    odd = rank == 1
    for x, options in [
        (q, {"feature_map": "zz"}), (q, {"feature_map": broken}), (q.numpy(), {}),
        (q[0].tolist(), {}), (q.to("meta"), {}), (q.to_sparse(), {}), (None, {}),
    ]:  # fmt: skip
        for call in (distributed.causal, distributed.noncausal):
            with pytest.raises((TypeError, ValueError) if odd else RuntimeError):
                call(q, q, x if odd else q, **(options if odd else {}))
    for call in (distributed.causal, distributed.noncausal):
        with pytest.raises(ValueError, match="whether an operand requires grad is"):
            call(q, q, q.clone().requires_grad_(odd))
        with torch.no_grad():
            call(q, q, q.clone().requires_grad_(odd))
            assert torch.equal(call(q, q, torch._neg_view(q)), -call(q, q, q))


def errors(rank):
    q = draw(2, 5, D)
    phi = linattn.feature_maps.PositiveRandomFeatures.sample(D, 6, rng=0)
    for call in (distributed.causal, distributed.noncausal):
        with pytest.raises(ValueError, match="carry a scale of their own"):
            call(q, q, q, feature_map=phi)
    with pytest.raises((ValueError, RuntimeError), match="k has shape"):
        distributed.causal(q, q[..., :-1] if rank == 1 else q, q)
    g, by_channel, bonus = draw(2, 5), draw(2, 5, D), draw(D)
    if rank == 1:
        g, bonus = by_channel, None
    for gates, more, what in [(g, {}, "shape of g is"), (by_channel, {"bonus": bonus}, "of bonus")]:
        with pytest.raises(ValueError, match=what):
            distributed.gated(q, q, q, gates, **more)


dist.init_process_group("gloo")
torch.set_num_threads(1)
compare(dist.get_rank(), dist.get_world_size())
beside_data_parallel(dist.get_rank(), dist.get_world_size())
if dist.get_world_size() > 1:
    errors(dist.get_rank())
    errors_of_one(dist.get_rank())
dist.barrier()
if dist.get_rank() == 0:
    print("all the same", flush=True)
dist.destroy_process_group()
os._exit(0)  # without the exit handlers of gloo's threads, which now and then abort
