"""Gradients of every operator, and of its twin, are the adjoint of its derivative, states and bonus
included."""

import conv_cases
import numpy as np
import operands
import pytest
from adjoint import check
from bounds import close
from cases import MAPS, SIGNED
from operands import dims, kinds, twin
from slow import each
from states import drawn, flat
from table import ALL, COMPLEX, GATES, normal_like, wide

import linattn
from linattn import State, reference
from linattn.operators.registry import RECURRENCES
from linattn.reference import conv as ref_conv

BOTH = (linattn, reference)
SIZES = [((), 1, 3, 2), ((2,), 17, 5, 8), ((), 70, 33, 20)]  # lead, n, d, m


def _calls():
    """(name, operands with channels or given, map, whether normalised)"""
    for name, r in RECURRENCES.items():
        # Others have states of one array, or maxima, whose twins take no complex step.
        if r.decay is not None or r.one_array or r.holder is not State:
            continue
        for more in kinds(name):
            for phi in MAPS if r.mapped else ("identity",):
                for normalize in (True, False) if r.normalizer else (False,):
                    yield name, more, phi, normalize


@pytest.mark.parametrize(("name", "more", "feature_map", "normalize"), list(_calls()))
def test_recurrence(name, more, feature_map, normalize):
    r, rng, letters = RECURRENCES[name], np.random.default_rng(8), dims(name, more)
    options = {"scale": 0.4} if r.scaled else {}
    options |= {"feature_map": feature_map} if r.mapped else {}
    options |= {"normalize": normalize, "eps": 0.01} if r.normalizer else {}
    for lead, n, d, m in SIZES:
        for gates in ("weak", "strong", "growing") if "g" in letters else ("weak",):
            sizes = {"n": n, "s": n, "d": d, "m": m}
            arrays = operands.make(
                letters, sizes, rng,
                lead=lead, gates=GATES[gates], feature_map=feature_map,
            )  # fmt: skip
            if feature_map in SIGNED and normalize:
                arrays |= {x: abs(arrays[x]) for x in "qk"}
            grad_out = rng.standard_normal((*lead, n, m))
            phi = r.mapped and feature_map
            _stateless(name, arrays, options, grad_out, rng)
            if not r.cross:
                _stateful(name, arrays, options, grad_out, rng, phi, normalize)
            if lead and gates == "weak":
                more = options | ({"key_lengths": [5, n]} if r.keys else {})
                _stateless(name, arrays, more, grad_out, rng, BOTH)
                if not r.cross:
                    more["cu_seqlens"] = [0, 4, 4, n]
                    _stateful(name, arrays, more, grad_out, rng, phi, normalize, BOTH)
                if r.blocks and "bonus" not in letters:
                    more = options | {"block": 3}
                    _stateless(name, arrays, more, grad_out, rng, BOTH)
                    _stateful(name, arrays, more, grad_out, rng, phi, normalize, BOTH)


def _stateless(name, arrays, options, grad_out, rng, modules=(linattn,)):
    def forward(*moved):
        return getattr(twin(name), name)(**dict(zip(arrays, moved, strict=True)), **options)

    for module in modules:
        gradients = getattr(module, f"{name}_backward")(**arrays, grad_out=grad_out, **options)
        check(forward, list(arrays.values()), [grad_out], gradients, rng)


def _stateful(name, arrays, options, grad_out, rng, feature_map, normalize, modules=(linattn,)):
    """With an initial state, and a gradient of the final one."""
    core = linattn.initial_state(
        *list(arrays.values())[: max(2, RECURRENCES[name].layout.leading)], operator=name,
        feature_map=feature_map or "elu", cu_seqlens=options.get("cu_seqlens"),
    ).s.shape  # fmt: skip
    first, last = (drawn(RECURRENCES[name], rng, core, normalize) for _ in range(2))

    def forward(*moved):
        given = dict(zip(arrays, moved, strict=False))
        begin = State(*moved[len(given) :])
        return getattr(twin(name), name)(**given, **options, initial_state=begin, return_state=True)

    leaves = [*arrays.values(), *flat(first)]
    for module in modules:
        gradients = getattr(module, f"{name}_backward")(
            **arrays, grad_out=grad_out, **options, initial_state=first, grad_state=last
        )
        check(forward, leaves, [grad_out, *flat(last)], gradients, rng)


#: Those whose twins take no complex step: running maxima, and complex numbers.
OTHERS = [x for x in ALL if x.row is None or x.row.decay is not None or x.name == "slstm"] + COMPLEX


@each(OTHERS)
def test_others(case):
    """Central differences of the twin in long double."""
    arrays, rng, h = case.operands((), 9, d=3, m=4), np.random.default_rng(7), np.longdouble(1e-6)
    given, fields, cotangents = {}, {}, [arrays["grad_out"]]
    if case.held:
        start, last = (case.state((), seed=seed, d=3, m=4) for seed in (1, 2))
        given = {"initial_state": start, "grad_state": last}
        fields = {name: x for name, x in start._asdict().items() if x is not None}
        cotangents += flat(last)

    def loss(moved):
        operands = {name: moved[name] for name in case.letters}
        if not case.held:
            return (case.call(operands, reference) * cotangents[0]).sum()
        state = start._replace(**{name: moved[name] for name in fields})
        results = flat(case.forward(operands, reference, initial_state=state))
        pairs = zip(results, cotangents, strict=True)
        return sum((x * y.conj()).real.sum() for x, y in pairs)

    leaves = {name: arrays[name] for name in case.letters} | fields
    exact = wide(leaves)
    gradients = [flat(case.backward(arrays, module, **given)) for module in BOTH]
    for (name, x), *grads in zip(leaves.items(), *gradients, strict=True):
        for _ in range(4):
            way = normal_like(rng, x)
            up, down = (loss(exact | {name: exact[name] + step * way}) for step in (h, -h))
            for grad in grads:
                close(
                    (grad * way.conj()).real.sum(),
                    (up - down) / (2 * h),
                    atol=1e-11 * (1 + (abs(grad) * abs(way)).sum()),
                )


@pytest.mark.parametrize("activation", conv_cases.ACTIVATIONS)
@pytest.mark.parametrize("cuts", [None, [0, 2, 2, 40]])
def test_convolution(activation, cuts):
    x, weight, b, g, state, last = conv_cases.make(40, 33, 4)
    if cuts is not None:
        state, last = (np.stack([y, 2 * y, y - 1], 1) for y in (state, last))
    options = {"activation": activation, "cu_seqlens": cuts}

    def forward(x, weight, b, state):
        given = {"initial_state": state, "return_state": True}
        return ref_conv.causal_conv1d(x, weight, b, **options, **given)

    for module in (linattn, ref_conv):
        gradients = module.causal_conv1d_backward(
            x, weight, g, b, **options, initial_state=state, grad_state=last
        )
        check(forward, [x, weight, b, state], [g, last], gradients, np.random.default_rng(1))


@pytest.mark.parametrize("lower_bound", [None, -5.0, -0.3])
def test_log_decay(lower_bound):
    rng = np.random.default_rng(1)
    x, A_log, dt_bias = (rng.standard_normal(shape) for shape in ((2, 40, 7), (7,), (7,)))
    grad = rng.standard_normal(x.shape)

    def forward(*moved):
        return ref_conv.log_decay(*moved, lower_bound=lower_bound)

    for module in (linattn, ref_conv):
        gradients = module.log_decay_backward(x, A_log, dt_bias, grad, lower_bound=lower_bound)
        check(forward, [x, A_log, dt_bias], [grad], gradients, rng)
