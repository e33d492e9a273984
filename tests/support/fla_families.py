"""The rules of linattn.torch.fla: their functions, twins, operands and states, a row a rule."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import fla_twins as twins
from fla_cases import CASES, H, K, T, V, loop, norm, rand, torch
from fla_cases import make as make_of

from linattn.torch import fla

D, M = 7, 6  #: channels of HGRN, slots
FORMS = ("chunk", "fused_recurrent")
#: Options for states with values first, the second of them deprecated.
BY_VALUE = {"gla": ("state_v_first",)} | dict.fromkeys(
    ("simple_gla", "gated_delta_rule", "kda"), ("state_v_first", "transpose_state_layout")
)


def parts(state: Any) -> list[torch.Tensor]:
    """The tensors of a state."""
    state = state if isinstance(state, tuple) else (state,)
    return [x for x in state if x is not None]


def apply(f: Callable[[torch.Tensor], torch.Tensor], state: Any) -> Any:
    """f of each tensor of a state."""
    return tuple(map(f, state)) if isinstance(state, tuple) else f(state)


class Family(NamedTuple):
    """A rule: a call in one of its forms, and its twin, both of operands by fla's names."""

    #: run(form, operands, start, **options): the output and the state, None if it is not asked for.
    run: Callable[..., tuple[torch.Tensor, Any]]
    twin: Callable[..., tuple[torch.Tensor, Any]]
    make: Callable[[int], dict[str, torch.Tensor]]  # operands of a batch
    starts: Callable[[int], Any]  # states of so many sequences
    forms: tuple[str, ...] = FORMS
    #: Relative to the largest number of an output, a state and a gradient.
    tolerances: tuple[float, float, float] = (1e-13, 1e-13, 1e-12)
    #: The same of outputs and states for tokens of 16 bits.
    half: tuple[float, float] = (2**-6, 2**-6)
    unpacked: tuple[str, ...] = ()  # forms that take no cu_seqlens
    axis: int = 0  # of the sequences in states
    whole: tuple[str, ...] = ()  # operands that are not of tokens
    by_value: tuple[str, ...] = ()  # options for states with values first
    nothing: Callable[[Any], Any] = lambda start: apply(torch.zeros_like, start)
    fold: Callable[[torch.Tensor], torch.Tensor] = lambda x: x  # what gradients are compared by

    @property
    def packed(self) -> list[str]:
        return [x for x in self.forms if x not in self.unpacked]

    def sequence(self, start: Any, i: int) -> Any:
        """The state of one of them."""
        return apply(lambda x: x.narrow(self.axis, i, 1), start)


def by_name(name: str, **fixed: Any) -> Callable[..., Any]:
    def run(form, x, start=None, /, **options):
        return getattr(fla, f"{form}_{name}")(**x, initial_state=start, **fixed | options)

    return run


def looped(name: str) -> Family:
    """A rule of `fla_cases.CASES`."""
    names, also, more, groups = CASES[name]
    named = ("g", "beta") if name == "gated_delta_rule" else ()  # not at one place in both forms

    def run(form, x, start=None, /, **options):
        keywords = {i: x[i] for i in named}
        given = [y for i, y in x.items() if i not in named]
        f = getattr(fla, f"{form}_{name}")
        return f(*given, **keywords, **more, initial_state=start, **options)

    def twin(start, **x):
        return loop(x["r"] if "r" in x else x["q"], x["k"], x["v"], **also(x), start=start)

    def make(batch):
        x = make_of(name, batch)
        return {i: x[i] for i in names}

    rounded = name in ("retention", "lightning_attn")  # whose decays are of float32
    return Family(
        run, twin, make, lambda n: rand(n, H * groups, K, V, seed=10),
        tolerances=(3e-7, 3e-7, 3e-6) if rounded else (1e-13, 1e-13, 1e-12),
        half=(2**-8, 1e-5), whole=("u",), by_value=BY_VALUE.get(name, ()),
    )  # fmt: skip


def generalized(name, twin, names, heads=H, more=1, forms=FORMS, by_value=(), **fixed) -> Family:
    """A rule with operands of `fla_twins`, by fla's names and ours."""

    def make(batch):
        x = twins.operands(heads, batch, more)
        pairs = (pair.partition("=") for pair in names.split())
        return {key: x[given or key] for key, _, given in pairs}

    starts = lambda n: rand(n, heads, K, V, seed=20)  # noqa: E731
    return Family(by_name(name, **fixed), twin, make, starts, forms, by_value=by_value)


def preconditioned(name: str) -> Family:
    call = by_name(f"precond_{name}", use_qk_l2norm_in_kernel=False)

    def run(form, x, start=(None, None), /, **options):
        o, *state = call(form, x, start[0], initial_A_state=start[1], **options)
        return o, tuple(state)

    def make(batch, heads=2 * H):
        x = twins.operands(heads, batch)
        return {key: x[key] for key in ("q", "k", "v", "beta")} | {
            "g": x["gk" if name == "kda" else "g"], "g_atk": -rand(batch, T, H, seed=13).abs(),
            "beta_atk": rand(batch, T, H, seed=14).sigmoid(),
        }  # fmt: skip

    starts = lambda n: (rand(n, 2 * H, K, V, seed=20), rand(n, H, K, seed=21).abs())  # noqa: E731
    return Family(
        run, twins.preconditioned, make, starts, tolerances=(1e-13, 1e-11, 1e-11),
        by_value=("transpose_state_layout",),
    )  # fmt: skip


def momentum() -> Family:
    """Keys have norm 1, so that the memory stays bounded."""

    def make(batch):
        gates = {
            "log_alpha": -rand(batch, T, H, seed=3).abs(),
            "log_mu": -rand(batch, T, H, seed=4).abs(),
            "beta": rand(batch, T, H, seed=5).sigmoid(), "eta": rand(batch, T, H, seed=6).sigmoid(),
        }  # fmt: skip
        q, k, v = (rand(batch, T, H, x, seed=i) for i, x in enumerate((K, K, V)))
        return {"q": q, "k": norm(k), "v": v, "p": norm(rand(batch, T, H, K, seed=7))} | gates

    plain = {"use_qk_l2norm_in_kernel": False, "use_p_times_alpha": False}
    return Family(
        by_name("momentum_delta_rule", **plain), twins.momentum, make,
        lambda n: rand(2, n, H, K, V, seed=8), tolerances=(1e-13,) * 3, half=(2**-7, 2**-6), axis=1,
    )  # fmt: skip


def mesa() -> Family:
    """The error of x is that of q times the condition of h + diag(lamb), below 20 here."""

    def run(form, x, start=(None, None), /, **options):
        o, *state = fla.chunk_mesa_net(**x, h_kk_init=start[0], h_kv_init=start[1], **options)
        return o, tuple(state)

    def make(batch):
        x = twins.operands(batch=batch)
        return {key: x[key] for key in ("q", "k", "v", "g", "beta")} | {
            "lamb": 0.5 + rand(H, K, seed=12).sigmoid()
        }

    def starts(n):
        half = rand(n, H, K, K, seed=20)
        return half @ half.mT / K, rand(n, H, K, V, seed=21)

    # A symmetric state's gradient is symmetric only together with its transpose.
    fold = lambda x: x + x.mT if x.shape[-2:] == (K, K) else x  # noqa: E731
    return Family(
        run, twins.mesa, make, starts, ("chunk",), (1e-12, 1e-14, 1e-11), (2**-8, 2**-6),
        whole=("lamb",), fold=fold,
    )  # fmt: skip


def hgrn() -> Family:
    def make(batch):
        return {"x": rand(batch, T, D), "g": -rand(batch, T, D, seed=1).abs()}

    return Family(
        by_name("hgrn"), twins.hgrn, make, lambda n: rand(n, D, seed=2),
        tolerances=(1e-14, 1e-14, 1e-13), half=(2**-8, 2**-6), unpacked=("chunk",),
    )  # fmt: skip


def slots(name: str, gated=False, groups=1) -> Family:
    def make(batch):
        x = {
            "q": rand(batch, T, H * groups, K), "k": rand(batch, T, H, K, seed=1),
            "v": rand(batch, T, H, V, seed=2), "s": rand(batch, T, H, M, seed=3),
        }  # fmt: skip
        return x | ({"g": -rand(batch, T, H, M, seed=4).abs()} if gated else {})

    starts = lambda n: (rand(n, H, K, M, seed=5), rand(n, H, M, V, seed=6))  # noqa: E731
    forms, unpacked = (FORMS, ()) if name == "gsa" else (("chunk",), ("chunk",))
    tolerances = (1e-13, 1e-12, 1e-12)
    return Family(by_name(name), twins.gsa, make, starts, forms, tolerances, unpacked=unpacked)


def lightnet() -> Family:
    def make(batch):
        return {x: rand(batch, T, H, V if x == "v" else K, seed=i) for i, x in enumerate("qkv")}

    return Family(
        by_name("lightnet"), twins.lightnet, make,
        lambda n: (rand(n, H, K, V, seed=5), rand(n, 1, H, K, seed=6)),
        tolerances=(1e-13, 1e-12, 1e-12), nothing=lambda start: (0 * start[0], None),
        by_value=("state_v_first",),
    )  # fmt: skip


def polynomial(name, weigh, forms, eps, scale, /, **options) -> Family:
    """A rule whose weights are a polynomial of the scores; without ``eps`` it is no average."""

    def run(form, x, start=(), /, **_):
        return getattr(fla, f"{form}_{name}")(**x, **options), None

    def twin(q, k, v, start):
        weights = weigh(scale * torch.einsum("bihk,bjhk->bhij", q, k)).tril()
        total = weights.sum(-1).transpose(1, 2)[..., None]
        o = torch.einsum("bhij,bjhv->bihv", weights, v)
        return o if eps is None else o / (total + eps), ()

    def make(batch):
        return {x: rand(batch, T, H, V if x == "v" else K, seed=i) for i, x in enumerate("qkv")}

    return Family(run, twin, make, lambda n: (), forms, half=(2**-8, 0), unpacked=forms)


def based(scale=None, norm=True) -> Family:
    own, eps = K**-0.5 if scale is None else scale, 1e-6 if norm else None
    series = lambda s: 1 + s + s**2 / 2  # noqa: E731
    forms = "parallel", "fused_chunk"
    return polynomial("based", series, forms, eps, own, scale=scale, use_norm=norm)


def rebased(scaled=True, norm=True, eps=0.25) -> Family:
    own, scale = eps if norm else None, K**-0.5 if scaled else 1.0
    options = {"eps": eps, "use_scale": scaled, "use_normalize": norm}
    return polynomial("rebased", torch.square, ("parallel",), own, scale, **options)


def value_gates(name: str, names: str) -> Family:
    names, by_value = f"q k v gv {names}", ("state_v_first",)
    return generalized(name, twins.by_value, names, 2 * H, forms=FORMS[1:], by_value=by_value)


FAMILIES = {
    **{name: looped(name) for name in CASES},
    "comba": generalized("comba", twins.comba, "q k v p g beta", 2 * H),
    "gdn2": generalized("gdn2", twins.gdn2, "q k v g=gk b=erase w", 2 * H,
                        by_value=("state_v_first",)),
    "iplr_delta_rule": generalized("iplr_delta_rule", twins.iplr, "q k v a b"),
    "gated_oja_rule": generalized("gated_oja_rule", twins.gated_oja_rule, "q k v=u gv beta", 2 * H),
    "gated_delta_product": generalized("gated_delta_product", twins.gated_delta_product,
                                       "q k v g beta", more=2, forms=("chunk",), num_householder=2),
    "precond_gated_delta_rule": preconditioned("gated_delta_rule"),
    "precond_kda": preconditioned("kda"),
    "momentum_delta_rule": momentum(),
    "mesa_net": mesa(),
    "hgrn": hgrn(),
    "lightnet": lightnet(),
    "gsa": slots("gsa", gated=True),
    "gsa, groups": slots("gsa", gated=True, groups=2),
    "gsa, no gates": slots("gsa"),
    "abc": slots("abc"),
    "abc, groups": slots("abc", groups=2),
    "based": based(),
    "based, scaled": based(0.7),
    "based, negative": based(-0.7),
    **{f"based, sums, {x}": based(x, norm=False) for x in (None, 0.7, -0.7)},
    "rebased": rebased(eps=1e-6),
    **{f"rebased, {x} {y}": rebased(x, y) for x in (True, False) for y in (True, False)},
    **{f"gla, gv {x}": value_gates("gla", x) for x in ("", "gk")},
    **{
        f"gated_delta_rule, gv {x}": value_gates("gated_delta_rule", x)
        for x in ("beta", "beta g", "beta gk", "beta g gk")
    }
}  # fmt: skip
