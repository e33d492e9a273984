"""Small models of fla, one for each recurrence that linattn supports."""

import inspect
import warnings

import torch

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # of a machine without a GPU
    import fla.models

VOCABULARY = 61
COMMON = {
    "hidden_size": 32, "num_hidden_layers": 2, "num_heads": 2, "head_dim": 16, "expand_k": 1,
    "expand_v": 1, "hidden_ratio": 2, "intermediate_size": 32, "feature_dim": 16,
    "vocab_size": VOCABULARY, "bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0,
}  # fmt: skip
#: By the name of the model, its options beside the common ones.
FAMILIES = {
    **{name: {} for name in (
        "Comba", "DeltaNet", "GLA", "GatedDeltaNet", "GatedDeltaProduct", "KDA", "LinearAttention",
        "MesaNet", "PrecondGatedDeltaNet", "PrecondKDA", "RWKV7", "RetNet",
    )},
    "ABC": {"num_slots": 8},
    "GSA": {"num_slots": 8},
    "HGRN": {"expand_ratio": 1},
    "HGRN2": {"expand_ratio": 16},
    "LightNet": {"expand_ratio": 16},
    "Mamba": {"state_size": 8, "expand": 2},
    "Mamba2": {"state_size": 8, "expand": 2, "num_heads": 4, "n_groups": 1, "chunk_size": 16},
    "Mamba3": {"state_size": 8, "expand": 2},
    "RWKV6": {"proj_low_rank_dim": 8, "gate_low_rank_dim": 8},
    "Raven": {"num_slots": 8, "topk": 3, "add_gumbel_noise": False},
    # With fla's defaults its blocks expect a residual that its model does not hand on.
    "Rodimus": {"block_type": "rodimus", "expand_ratio": 8, "block_residual_in_fp32": True},
}  # fmt: skip
#: Those that take packed sequences in their ``cu_seqlens``.  The model of linear attention takes no
#: notice of them, though its layer does.
PACKED = sorted(FAMILIES.keys() - {"ABC", "LinearAttention", "Mamba", "Mamba2"})


def build(name, **options):
    """A model with the same random weights at each call."""
    kind = getattr(fla.models, f"{name}Config")
    given = COMMON | FAMILIES[name] | options
    known = inspect.signature(kind.__init__).parameters
    config = kind(**{x: y for x, y in given.items() if x in known or x.endswith("_token_id")})
    with warnings.catch_warnings(), torch.random.fork_rng():
        warnings.simplefilter("ignore")
        torch.manual_seed(0)
        return getattr(fla.models, f"{name}ForCausalLM")(config)


def enlarged(model):
    """The model with larger weights than fla's initial ones, where a token affects the others."""
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for p in model.parameters():
            if p.ndim > 1:
                p.normal_(std=0.5 / p.shape[-1] ** 0.5, generator=generator)
    return model


def tokens(*shape, seed=0):
    return torch.randint(3, VOCABULARY, shape, generator=torch.Generator().manual_seed(seed))


def by_steps(model, ids, prompt):
    """The logits of a prompt of so many tokens and of the tokens after it one by one."""
    out = model(ids[:, :prompt], use_cache=True)
    pieces = [out.logits]
    for i in range(prompt, ids.shape[1]):
        out = model(ids[:, i : i + 1], past_key_values=out.past_key_values, use_cache=True)
        pieces.append(out.logits)
    return torch.cat(pieces, 1)
