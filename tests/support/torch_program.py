"""The program that test_torch_distributed.py runs in several processes.

It ends with "all the same".
"""

import os

import pytest
import torch
import torch.distributed as dist
from block_cases import CASES, D, N
from bounds import close

import linattn
import linattn.torch as la
from linattn.torch import distributed


def draw(*shape, seed=0):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def cases():
    """Calls that are cut along their tokens, as dask and MPI cut them, but for lengths."""
    for call in (x for x in CASES if x.for_ranks):
        if call.name in distributed.__all__ and "key_lengths" not in call.options:
            yield call.name, {x: torch.tensor(y) for x, y in call.operands.items()}, call.options


def stretch(x, rank, size):
    """This process's tokens."""
    if N not in x.shape:
        return x
    begin, end = (N * (rank + i) // size for i in (0, 1))
    return x.narrow(x.shape.index(N), begin, end - begin)


def leaves(operands, cut):
    return {name: cut(x).clone().requires_grad_() for name, x in operands.items()}


def compare(rank, size):
    for name, operands, options in cases():
        whole = leaves(operands, lambda x: x)
        expected = getattr(la, name)(**whole, **options)
        expected.abs().square().sum().backward()
        mine = leaves(operands, lambda x: stretch(x, rank, size))
        o = getattr(distributed, name)(**mine, **options)
        o.abs().square().sum().backward()
        close(o.detach(), stretch(expected, rank, size).detach(), atol=1e-12)
        for x, y in zip(mine.values(), whole.values(), strict=True):
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


def transforms():
    q = draw(2, 5, D)
    for call in (
        torch.func.grad(lambda q: distributed.causal(q, q, q).sum()),
        torch.vmap(lambda q: distributed.causal(q, q, q)),
    ):
        with pytest.raises(NotImplementedError, match=r"distributed\.causal: torch.func's"):
            call(q)


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
transforms()
if dist.get_world_size() > 1:
    errors(dist.get_rank())
    errors_of_one(dist.get_rank())
dist.barrier()
if dist.get_rank() == 0:
    print("all the same", flush=True)
dist.destroy_process_group()
os._exit(0)  # without the exit handlers of gloo's threads, which now and then abort
