"""The libraries whose arrays linattn takes, a row each: in what their functions differ.

Nothing here imports them: the stubs are written from these rows where they are missing.
"""

from __future__ import annotations

from .._docs.templates import Raised, Vocabulary
from .._linattn import operators
from .bridge import Added, Bridge

_OTHERS = (
    "initial_state",
    "linformer",
    "log_decay",
    "softmax_attention",
)
_POOLS = ("state_indices", "state_at")
#: What only calls of whole sequences have.
_LOCAL = (*_POOLS, "block")
_NO_RESCALING = Raised(
    "ValueError", "normalize", "is True and the map one of PositiveRandomFeatures"
)
#: The dimensions of operands of recurrences, and the one more that they may have, by name.
_OPERANDS = {
    name: (dims, channels)
    for row in operators.values()
    if row["key_lengths"] and row["gradient_of"] is None
    for name, dims, channels, *_ in row["inputs"]
}
_NO_CHANNELS = Raised(
    "ValueError",
    " ".join(name for name, (_, channels) in _OPERANDS.items() if channels == "m"),
    "has one number per value channel",
)
_LOST = (
    "return_state",
    "What a `linattn.ExactState` has lost is a constant: gradients pass through ``s`` and ``z``.",
)
_TENSORS = Vocabulary("tensor", "tensor", "a tensor", "tensors", refused="complex, or not numbers")
#: Parameters that need not be tensors.
_ANY = dict.fromkeys(
    ("feature_map", "key_lengths", "cu_seqlens", "A_log", "dt_bias", *_POOLS), "Any"
)


def _without_tokens(remark: str) -> tuple[tuple[str, str], ...]:
    """A remark, with a place for its name, on each operand that is one for all tokens."""
    names = (name for name, (dims, _) in _OPERANDS.items() if not {*"ns"} & {*dims})
    return tuple((name, remark.format(name)) for name in names)


DASK = Bridge(
    module="linattn.dask",
    public="linattn.dask",
    imports="import dask.array",
    summary="`linattn.{name}` of dask arrays, lazy.",
    given="ArrayLike",
    made="dask.array.Array",
    blocks=True,
    words=Vocabulary(made="dask array"),
    without=("out", "exact_state", "rescaling", *_LOCAL),
    raises=(
        Raised("ValueError", "", "an array has unknown chunk sizes"),
        Raised("ValueError", "", "an operand has several chunks along its width"),
        Raised("ValueError", "cu_seqlens", "is given and tokens are in several chunks"),
        _NO_RESCALING,
        _NO_CHANNELS,
    ),
    notes=(("", "What a sequence in several chunks costs besides: see `linattn.dask`."),),
    examples={
        "forward": """
            >>> import dask.array as da, linattn.dask
            >>> x = da.ones((6, 2), chunks=(3, 2))
            >>> o = {function}({operands})
            >>> o.compute().shape
            (6, 2)
            """,
        "backward": """
            >>> import dask.array as da, linattn.dask
            >>> x = da.ones((6, 2), chunks=(3, 2))
            >>> dq, *others = {function}({operands}, x)
            >>> dq.compute().shape
            (6, 2)
            """,
    },
)

JAX = Bridge(
    module="linattn.jax",
    public="linattn.jax",
    imports="import jax",
    summary="`linattn.{name}` of JAX's arrays, differentiable.",
    given="ArrayLike",
    made="jax.Array",
    words=Vocabulary(made="jax.Array", library="JAX", refused="complex, or not numbers"),
    annotations={"feature_map": "Any"},
    without=("out", "half_state", "in_place", "rescaling", "MemoryError", *_POOLS),
    added=(
        Added(
            "axis_name",
            "str | None",
            """
            axis_name : str, optional
                Within `jax.shard_map`, the axis of the mesh along which the tokens are cut; the
                states are those of the whole sequence, alike on every device.""",
            everywhere=False,
            forms=("forward",),
        ),
    ),
    raises=(
        Raised("TypeError", "eps scale", "is traced, or no real number"),
        Raised("TypeError", "feature_map", "is neither a name, a map, nor a function"),
        Raised("TypeError", "initial_state grad_state state", "is not {holder}"),
        Raised("ValueError", "", "the arrays are not on a CPU"),
        _NO_RESCALING,
        Raised(
            "ValueError",
            "axis_name",
            "is given with key_lengths, cu_seqlens, block, or a beta per value channel",
        ),
    ),
    notes=(
        _LOST,
        ("key_lengths", "Where ``key_lengths`` is traced, its values are not checked."),
        ("cu_seqlens", "Where ``cu_seqlens`` is traced, its values are not checked."),
    ),
    functions=_OTHERS,
    examples={
        "forward": """
            >>> import jax, jax.numpy as jnp, linattn.jax
            >>> x = jnp.ones(({shape}))
            >>> o, vjp = jax.vjp({function}, {operands})
            >>> dq, *others = vjp(o)
            >>> o.shape, dq.shape
            (({result}), ({shape}))
            """,
        "step": """
            >>> import jax.numpy as jnp, linattn.jax
            >>> x = jnp.ones(({shape}))  # a batch
            >>> state = linattn.jax.initial_state({operands}, operator="{name}")
            >>> o, state = {function}({operands}, state)
            >>> o.shape
            ({result})
            """,
    },
)

MPI = Bridge(
    module="linattn.mpi",
    public="linattn.mpi",
    imports="from mpi4py import MPI",
    summary="`linattn.{name}` of this rank's tokens.",
    given="ArrayLike",
    made="Array",
    blocks=True,
    without=("out", "exact_state", "cu_seqlens", "rescaling", *_LOCAL),
    added=(
        Added(
            "comm",
            "MPI.Comm | None",
            """
            comm : mpi4py.MPI.Comm, optional
                COMM_WORLD by default.  All its ranks call together, with the same arguments but
                for the tokens; lengths and states are those of the whole sequence, alike on every
                rank.""",
        ),
    ),
    raises=(
        Raised("ValueError", "", "calls differ between ranks"),
        _NO_RESCALING,
        _NO_CHANNELS,
        Raised("RuntimeError", "", "another rank has an error"),
    ),
    notes=(
        (
            "",
            "A scan over the ranks besides; unless states are sums, up to twice the time more.",
        ),
        *_without_tokens("The gradient of ``{}``, which all ranks have, is the sum over ranks."),
    ),
    examples={
        "forward": """
            >>> import numpy as np, linattn.mpi
            >>> x = np.ones((3, 2))
            >>> {function}({operands}).shape
            (3, 2)
            """,
        "backward": """
            >>> import numpy as np, linattn.mpi
            >>> x = np.ones((3, 2))
            >>> dq, *others = {function}({operands}, x)
            >>> dq.shape
            (3, 2)
            """,
    },
)

TORCH = Bridge(
    module="linattn.torch.operators",
    public="linattn.torch",
    imports="from torch import Tensor",
    summary="`linattn.{name}` of CPU tensors, differentiable.",
    given="Tensor",
    made="Tensor",
    words=_TENSORS,
    annotations=_ANY | {"activation": "str | None"},
    without=("out",),
    notes=(
        _LOST,
        (
            "state_indices",
            "With ``state_indices``, a call of which a gradient is recorded writes nothing: it "
            "returns a new pool, through which gradients pass.",
        ),
    ),
    functions=(*_OTHERS, "fused_gated_delta_step", "fused_gated_step"),
    examples={
        "forward": """
            >>> import torch, linattn.torch
            >>> x = torch.ones({shape}, requires_grad=True)
            >>> o = {function}({operands})
            >>> o.sum().backward()
            >>> o.shape, x.grad.shape
            (torch.Size([{result}]), torch.Size([{shape}]))
            """,
        "step": """
            >>> import torch, linattn.torch
            >>> x = torch.ones({shape})  # a batch
            >>> state = linattn.torch.initial_state({operands}, operator="{name}")
            >>> o, state = {function}({operands}, state)
            >>> o.shape
            torch.Size([{result}])
            """,
    },
)

DISTRIBUTED = Bridge(
    module="linattn.torch.distributed",
    public="linattn.torch.distributed",
    imports="from torch import Tensor\nfrom torch.distributed import ProcessGroup",
    summary="`linattn.torch.{name}` of this process's tokens.",
    given="Tensor",
    made="Tensor",
    blocks=True,
    words=_TENSORS,
    annotations=_ANY,
    without=(
        "out",
        "exact_state",
        "key_lengths",
        "cu_seqlens",
        "initial_state",
        "return_state",
        "rescaling",
        *_LOCAL,
    ),
    added=(
        Added(
            "group",
            "ProcessGroup | None",
            """
            group : torch.distributed.ProcessGroup, optional
                The whole world by default.  All its processes call together, with the same
                arguments but for the tokens, forwards and backwards.""",
        ),
    ),
    raises=(
        Raised("ValueError", "", "calls differ between processes"),
        Raised("ValueError", "", "this process is not in the group"),
        _NO_RESCALING,
        _NO_CHANNELS,
        Raised("RuntimeError", "", "another process has an error"),
    ),
    notes=(
        ("", "One all-gather besides; unless states are sums, up to twice the time more."),
        *_without_tokens("The gradient of ``{}``, which all processes have, is the sum over them."),
    ),
    examples={
        "forward": """
            >>> import torch, torch.distributed as dist, linattn.torch.distributed
            >>> dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
            >>> x = torch.ones(3, 2)
            >>> o = {function}({operands})
            >>> o.shape
            torch.Size([3, 2])
            >>> dist.destroy_process_group()
            """,
    },
)

#: By the names of their files in linattn/_signatures.
BRIDGES = {"dask": DASK, "jax": JAX, "mpi": MPI, "torch": TORCH, "distributed": DISTRIBUTED}
