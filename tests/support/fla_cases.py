"""Operands of linattn.torch.fla in its layout."""

import torch

B, T, H, G, K, V = 2, 11, 3, 2, 4, 5
CUTS = (0, 4, 4, 11)


def loop(q, k, v, *, g=None, beta=None, a=None, b=None, u=None, scale=None, start=None):
    """Run a recurrence one token at a time and return (o, s); tokens are [B, T, H, K]."""
    scale = q.shape[-1] ** -0.5 if scale is None else scale
    groups = v.shape[2] // q.shape[2]
    q, k = (x.repeat_interleave(groups, 2) for x in (q, k))
    s = torch.zeros(q.shape[0], v.shape[2], q.shape[-1], v.shape[-1]).to(q)
    s = s if start is None else s + start
    out = []
    for i in range(q.shape[1]):
        decay = torch.ones(()) if g is None else g[:, i].exp()
        decay = decay[..., None] if decay.ndim == 3 else decay[..., None, None]
        decay = decay if g is not None else 1.0
        kv = torch.einsum("bhk,bhv->bhkv", k[:, i], v[:, i])
        if u is not None:
            out.append(torch.einsum("bhk,bhkv->bhv", q[:, i], s + u[..., None] * kv))
        if beta is not None:
            s = s * decay
            read = torch.einsum("bhk,bhkv->bhv", k[:, i], s)
            write = beta[:, i, :, None] * (v[:, i] - read)
            s = s + torch.einsum("bhk,bhv->bhkv", k[:, i], write)
        elif a is not None:
            read = torch.einsum("bhk,bhkv->bhv", a[:, i], s)
            s = s * decay + torch.einsum("bhk,bhv->bhkv", b[:, i], read) + kv
        else:
            s = s * decay + kv
        if u is None:
            out.append(torch.einsum("bhk,bhkv->bhv", q[:, i], s))
    o = torch.stack(out, 1) if out else v
    return scale * o, s


def rand(*shape, seed=0):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def norm(x):
    return x / (x.square().sum(-1, keepdim=True) + 1e-6).sqrt()


def tokens(groups=1, batch=B):
    q, k = rand(batch, T, H, K), rand(batch, T, H, K, seed=1)
    return q, k, rand(batch, T, H * groups, V, seed=2)


def inputs(groups=1, batch=B):
    """Every operand that an operator may take, by fla's names."""
    heads = H * groups
    q, k, v = tokens(groups, batch)
    return {
        "q": q, "r": q, "k": k, "v": v,
        "g": -rand(batch, T, heads, seed=3).abs(),
        "gk": -rand(batch, T, heads, K, seed=4).abs(), "w": -rand(batch, T, heads, K, seed=4).abs(),
        "beta": rand(batch, T, heads, seed=5).sigmoid(),
        "a": norm(rand(batch, T, H, K, seed=6)) / 2, "b": norm(rand(batch, T, H, K, seed=7)) / 2,
        "u": rand(H, K, seed=8), "g_gamma": -rand(heads, seed=9).abs(),
    }  # fmt: skip


def retention(x):
    g = torch.log(1 - 2.0 ** (-5 - torch.arange(H))).double()
    return {"g": g.expand(*x["q"].shape[:2], H)}


def lightning(x):
    g = (-8 / H * (1 - 1 / 4) * torch.arange(H)).double()
    return {"g": g.expand(*x["q"].shape[:2], H)}


def pick(*names, **others):
    return lambda x: {key: x[name] for key, name in {**dict(zip(names, names, strict=True)),
                                                     **others}.items()}  # fmt: skip


#: (functions, operands after q, k, v as given, what the loop takes, options, groups)
CASES = {
    "linear_attn": (("q", "k", "v"), lambda x: {}, {"normalize": False}, 1),
    "simple_gla": (("q", "k", "v", "g"), pick("g"), {}, 2),
    "gla": (("q", "k", "v", "gk"), pick(g="gk"), {}, 1),
    "retention": (("q", "k", "v"), retention, {}, 1),
    "lightning_attn": (("q", "k", "v"), lightning, {"layer_idx": 1, "num_layers": 4}, 1),
    "rwkv6": (("r", "k", "v", "w", "u"), pick("u", g="w"), {}, 1),
    "delta_rule": (("q", "k", "v", "beta"), pick("beta"), {}, 2),
    "gated_delta_rule": (("q", "k", "v", "g", "beta"), pick("g", "beta"), {}, 2),
    "kda": (("q", "k", "v", "gk", "beta"), pick("beta", g="gk"), {}, 2),
    "dplr_delta_rule": (("q", "k", "v", "a", "b", "gk"), pick("a", "b", g="gk"), {}, 1),
    "rwkv7": (("r", "w", "k", "v", "a", "b"), pick("a", "b", g="w"), {"scale": None}, 1),
}
RULES = ("delta_rule", "gated_delta_rule", "kda")  # whose keys have norm 1


def make(name, batch=B):
    x = inputs(CASES[name][3], batch)
    return x | {"q": norm(x["q"]), "k": norm(x["k"]), "r": norm(x["r"])} if name in RULES else x
