"""One sequence over the processes of torch.distributed, with gradients."""

import torch
import torch.distributed as dist

from linattn.torch import distributed

dist.init_process_group("gloo")
torch.manual_seed(dist.get_rank())  # in a real job: this process's tokens
x = torch.randn(2, 8, 1000, 64, requires_grad=True)

o = distributed.causal(x, x, x)  # reads the tokens of all processes up to each token
o.square().mean().backward()

if dist.get_rank() == 0:
    size = dist.get_world_size()
    print(f"{size} processes, {size * x.shape[-2]:,} tokens, gradient {tuple(x.grad.shape)}")
dist.destroy_process_group()
