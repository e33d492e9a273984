"""The functions of linattn.torch.fla under torch.compile."""

import fla_twins as twins
import pytest
import torch
from fla_cases import H
from fla_twins import near

from linattn.torch import fla

X = twins.operands()


def comba(q):
    return fla.chunk_comba(q, X["k"], X["v"], X["p"], X["g"], X["beta"])[0]


def slots(q):
    return fla.chunk_gsa(q, X["k"], X["v"], X["a"], -X["a"].abs())[0]


def mesa(q):
    return fla.chunk_mesa_net(q, X["k"], X["v"], X["g"], X["beta"], torch.ones_like(q[0, 0]))[0]


CASES = [pytest.param(comba, True, marks=pytest.mark.slow), (slots, False),
         pytest.param(mesa, False, marks=pytest.mark.slow)]  # fmt: skip


@pytest.mark.parametrize(("run", "whole"), CASES)
def test_compiled(run, whole):
    """In one graph, or with a break where PyTorch cannot trace a gradient."""
    q, same = X["q"].clone().requires_grad_(), X["q"].clone().requires_grad_()
    o, want = torch.compile(run, fullgraph=whole, backend="eager")(q), run(same)
    assert o.shape[2] == H
    near(o, want, 1e-15)
    for y in (o, want):
        y.square().sum().backward()
    near(q.grad, same.grad, 1e-15)
