"""Token-by-token twins of the operators that linattn.torch.fla builds from others.

A twin takes fla's arguments by name, tokens [B, T, H, K] and a state; it returns outputs and the
state after the last token.
"""

from bounds import close
from fla_cases import B, H, K, T, V, norm, rand, torch


def near(found, want, tolerance):
    """``found`` differs from ``want`` by at most ``tolerance`` times its largest number."""
    found, want = found.detach(), want.detach()
    close(found, want, atol=tolerance * float(want.abs().max()))


def recur(step, state, *tokens):
    """``step`` takes a state and the operands of one token; returns outputs and the last state."""
    out = []
    for x in zip(*(x.unbind(1) for x in tokens), strict=True):
        state, o = step(state, *x)
        out.append(o)
    return torch.stack(out, 1), state


def outer(k, v):
    return k.unsqueeze(-1) * v.unsqueeze(-2)


def read(s, q):
    return torch.einsum("...kv,...k->...v", s, q)


def grouped(v, *xs):
    return (x.repeat_interleave(v.shape[2] // x.shape[2], 2) for x in xs)


def empty(x, n, batch=None):
    return x.new_zeros(batch or x.shape[0], x.shape[2], *n)


def comba(q, k, v, p, g, beta, start):
    def step(s, q, k, v, p, g, beta):
        write = beta[..., None] * (v - read(s, p))
        s = g[..., None, None].exp() * s + outer(k, write)
        return s, K**-0.5 * read(s, q)

    q, k, p = grouped(v, q, k, p)
    return recur(step, start, q, k, v, p, g, beta)


def momentum(q, k, v, p, log_alpha, log_mu, beta, eta, start):
    def step(state, q, k, v, p, g, mu, beta, eta):
        s, m = state
        write = outer(eta[..., None] * k, v - read(s, p))
        m = mu[..., None, None].exp() * m - write
        s = g[..., None, None].exp() * s - beta[..., None, None] * m
        return torch.stack([s, m]), K**-0.5 * read(s, q)

    return recur(step, start, q, k, v, p, log_alpha, log_mu, beta, eta)


def gdn2(q, k, v, g, b, w, start):
    def step(s, q, k, v, g, b, w):
        s = g[..., None].exp() * s
        s = s + outer(k, w * v - read(s, b * k))
        return s, K**-0.5 * read(s, q)

    q, k = grouped(v, q, k)
    return recur(step, start, q, k, v, g, b, w)


def iplr(q, k, v, a, b, start):
    def step(s, q, k, v, a, b):
        s = s + outer(k, v) + outer(b, read(s, a))
        return s, K**-0.5 * read(s, q)

    return recur(step, start, q, k, v, a, b)


def gated_delta_product(q, k, v, g, beta, start, num_householder=2):
    def step(s, q, k, v, g, beta):
        s = g[..., None, None].exp() * s
        for i in range(num_householder):
            s = s + outer(k[:, i], beta[:, i, :, None] * (v[:, i] - read(s, k[:, i])))
        return s, K**-0.5 * read(s, q)

    k, v, beta = (x.unflatten(1, (-1, num_householder)) for x in (k, v, beta))
    return recur(step, start, q, k, v, g, beta)


def softmax_over_time(x, start):
    """Weights, log decays and normalisers of the tokens so far; ``start`` [N, 1, ...] or None."""
    before, weights, decays = start, [], []
    for y in x.split(1, 1):
        z = y if before is None else torch.logaddexp(before, y)
        weights.append((y - z).exp())
        decays.append(torch.zeros_like(z) if before is None else before - z)
        before = z
    return torch.cat(weights, 1), torch.cat(decays, 1), before


def lightnet(q, k, v, start):
    def step(s, q, k, v, g):
        s = g[..., None].exp() * s + outer(k, v)
        return s, K**-0.5 * read(s, q)

    s, z = start
    k, g, z = softmax_over_time(k, z)
    o, s = recur(step, s, q, k, v, g)
    return o, (s, z)


def gsa(q, k, v, s, start, g=None):
    def step(state, q, k, v, s, g):
        hk, hv = state
        hk = hk * g.exp()[..., None, :] + outer(k, s)
        hv = hv * g.exp()[..., None] + outer(s, v)
        p = (K**-0.5 * read(by_query(hk), q)).softmax(-1)
        return (hk, hv), read(by_query(hv), p)

    def by_query(h):
        return h.repeat_interleave(q.shape[2] // k.shape[2], 1)

    if g is None:
        s, g, _ = softmax_over_time(s, None)
    return recur(step, start, q, k, v, s, g)


def preconditioned(q, k, v, g_atk, g, beta_atk, beta, start, x=1.5, eps=1e-6, center=-0.2):
    """``start`` is (s [N, HV, K, V], a [N, H, K]); g [B, T, HV] or [B, T, HV, K]."""

    def step(state, q, k, v, g_atk, g, beta_atk, beta):
        s, a = state
        a = g_atk.exp()[..., None] * a + beta_atk[..., None] * k**2
        r = (a + eps).log() - center
        key = k * x ** (-r / (1 + r.abs()))
        q, k, key = (y.repeat_interleave(v.shape[1] // k.shape[1], 1) for y in (q, k, key))
        s = (g[..., None] if g.ndim == 3 else g[..., None, None]).exp() * s
        s = s + outer(key, beta[..., None] * (v - read(s, k)))
        return (s, a), K**-0.5 * read(s, q)

    return recur(step, start, q, k, v, g_atk, g, beta_atk, beta)


def gated_oja_rule(q, k, v, gv, beta, start):
    def step(s, q, k, v, gv, beta):
        s = s * gv.exp()[..., None, :]
        write = beta[..., None] * (k - torch.einsum("...kv,...v->...k", s, v))
        s = s + outer(write, v)
        return s, K**-0.5 * read(s, q)

    q, k = grouped(v, q, k)
    return recur(step, start, q, k, v, gv, beta)


def mesa(q, k, v, g, beta, lamb, start):
    def step(state, q, k, v, g, beta):
        h, s = (g.exp()[..., None, None] * x for x in state)
        write = beta[..., None] * k
        h, s = h + outer(write, k), s + outer(write, v)
        x = torch.linalg.solve(h + torch.diag_embed(lamb), q)
        return (h, s), read(s, x)

    return recur(step, start, q, k, v, g, beta)


def hgrn(x, g, start):
    def step(h, x, g):
        h = g.exp() * h + x
        return h, h

    return recur(step, start, x, g)


def by_value(q, k, v, start, gv, g=None, gk=None, beta=None):
    """Decays of value channels in GLA, or with beta in the gated delta rule."""

    def step(s, q, k, v, gv, g, gk, *beta):
        s = (g[..., None] + gk)[..., None].exp() * s * gv[..., None, :].exp()
        for strength in beta:
            v = strength * (v - read(s, k))
        s = s + outer(k, v)
        return s, K**-0.5 * read(s, q)

    q, k = grouped(v, q, k)
    gates = v[..., 0] * 0 if g is None else g, k * 0 if gk is None else gk
    strengths = [] if beta is None else [beta if beta.ndim == 4 else beta.unsqueeze(-1)]
    return recur(step, start, q, k, v, gv, *gates, *strengths)


def operands(heads=H, batch=B, more=1):
    """Operands by fla's names, for twice as many value heads if ``heads`` is 2 H."""
    n = more * T
    return {
        "q": norm(rand(batch, T, H, K)), "k": norm(rand(batch, n, H, K, seed=1)),
        "v": rand(batch, n, heads, V, seed=2), "g": -rand(batch, T, heads, seed=3).abs(),
        "gk": -rand(batch, T, heads, K, seed=4).abs(),
        "beta": rand(batch, n, heads, seed=5).sigmoid(), "p": norm(rand(batch, n, H, K, seed=6)),
        "a": norm(rand(batch, n, H, K, seed=6)) / 2, "b": norm(rand(batch, n, H, K, seed=7)) / 2,
        "erase": rand(batch, n, heads, K, seed=8).sigmoid(),
        "w": rand(batch, n, heads, V, seed=9).sigmoid(),
        "u": norm(rand(batch, n, heads, V, seed=2)),
        "gv": -rand(batch, T, heads, V, seed=11).abs(),
    }  # fmt: skip
