"""linattn.torch's operators as ONNX: numbers of ONNX Runtime against NumPy's functions."""

import numpy as np
import pytest
import torch
from bounds import close, roundings, sensitivity
from gates import RULE_ROUNDINGS as ROUNDINGS
from onnx_models import TARGETS, Call, Calls, Function, exported, feed, kinds, nodes, onnx, run
from torch_cases import POSITIVE, ROWS, STEPPED, outputs

import linattn
import linattn.torch.onnx
from linattn.reference.maps import twin

PLAIN = [row for row in ROWS if "block" not in row.options]
#: Those whose tokens may be in blocks.
BLOCKS = [
    row._replace(options=row.options | {"block": 4})
    for row in PLAIN
    if row.name in ("causal", "delta", "gated", "gated_delta")
    and "bonus" not in row.letters
    and row.options.get("feature_map") is not POSITIVE
]
#: All rows, and a step for each operator.
CALLS = [
    *map(Call, [*PLAIN, *BLOCKS]),
    *(Call(x, step=True) for x in {x.name: x for x in STEPPED}.values()),
]
#: A row and a call in blocks of each operator, and some steps.
FEW = [
    *(Call(x) for y in (PLAIN, BLOCKS) for x in {x.name: x for x in reversed(y)}.values()),
    *CALLS[-4:],
]
DYNAMIC = torch.export.Dim.DYNAMIC


def drawn(*shape: int, seed: int = 0) -> torch.Tensor:
    rng = np.random.default_rng([seed, *shape])
    return torch.tensor(rng.standard_normal(shape), dtype=torch.float32)


def close_to(actual, expected, dtype=None):
    """Results within roundings of the largest entry of all of them."""
    arrays = [np.asarray(x) for x in expected]
    atol = roundings(ROUNDINGS, *arrays, dtype=dtype or actual[0].dtype)
    for x, y in zip(actual, arrays, strict=True):
        close(x, y, atol=atol)


class Model:
    """Calls of the tables, exported as a target and computed."""

    def __init__(self, target, calls):
        self.target = target
        self.inputs = [x.inputs(target.dtype) for x in calls]
        self.proto = exported(Calls(calls), (self.inputs,), **target.options)
        results = iter(run(self.proto, (self.inputs,)))
        expected = [x.expected(given) for x, given in zip(calls, self.inputs, strict=True)]
        self.expected = dict(zip(map(str, calls), expected, strict=True))
        self.actual = {}
        for name, arrays in self.expected.items():
            self.actual[name] = [next(results) for _ in arrays]


#: All calls are in three models, as the time of an export grows faster than the model; in the quick
#: tests, one has a call of each operator.
EACH = [
    pytest.param((TARGETS[0], FEW), id=f"{TARGETS[0].name}, few"),
    *(
        pytest.param((x, CALLS[i::3]), id=f"{x.name}, {i + 1} of 3", marks=pytest.mark.slow)
        for x in TARGETS
        for i in range(3)
    ),
]


@pytest.fixture(scope="module", params=EACH)
def model(request):
    return Model(*request.param)


def test_results_of_every_operator(model):
    for name, expected in model.expected.items():
        try:
            close_to(model.actual[name], expected)
        except AssertionError as error:
            raise AssertionError(f"{name}: {error}") from None


def test_operators_of_the_graph(model):
    domain = model.target.operator
    attention = {x for x in kinds(model.proto) if x.endswith("LinearAttention")}
    prefix = f"{domain}:" if domain else ""
    assert attention == (set() if domain == "-" else {f"{prefix}LinearAttention"})
    versions = {x.domain: x.version for x in model.proto.opset_import}
    assert versions.pop("") == model.target.options["opset_version"]
    assert versions == ({domain: 1} if domain not in ("", "-") else {})


def test_update_rules_of_opset_27():
    """Heads, groups and rules as the operator's attributes have them; its reference agrees."""
    q, k, v = drawn(2, 3, 2, 7, 4), drawn(2, 3, 1, 7, 4) / 2, drawn(2, 3, 1, 7, 5)
    g, beta = -drawn(2, 3, 1, 7).abs(), drawn(2, 3, 1, 7).sigmoid()
    gates = -drawn(2, 3, 1, 7, 4).abs()

    def rules(q, k, v, g, gates, beta):
        la, options = linattn.torch, {"scale": 0.5, "return_state": True}
        return outputs((
            la.causal(q, k, v, normalize=False, feature_map="elu", **options),
            la.causal(q, k, v, eps=0.1, **options),
            la.delta(q, k, v, beta, **options),
            la.gated(q, k, v, gates, **options),
            la.gated_delta(q, k, v, g, beta, **options),
            la.ssd(q, k, v, g, beta, D=k[0, :, :, 0, :1].expand(3, 1, 5), **options),
            la.ssd(q, k, v[:, :1], g, beta, **options),  # strengths for more heads than values
        ))  # fmt: skip

    args = q, k, v, g, gates, beta
    proto = exported(Function(rules), args)
    operators = [x for x in proto.graph.node if x.op_type == "LinearAttention"]
    given = [{x.name: onnx.helper.get_attribute_value(x) for x in y.attribute} for y in operators]
    assert [x["update_rule"].decode() for x in given] == [
        "linear", "linear", "delta", "gated", "gated_delta", "gated", "gated"
    ]  # fmt: skip
    assert {(x["q_num_heads"], x["kv_num_heads"]) for x in given} == {(6, 3)}
    expected = [x.numpy() for x in rules(*(x.double() for x in args))]
    close_to(run(proto, args), expected)
    reference = onnx.reference.ReferenceEvaluator(proto)
    close_to(reference.run(None, feed(proto, args)), expected)


@pytest.mark.slow
@pytest.mark.parametrize("target", TARGETS[:3], ids=lambda x: x.name)
def test_batches_and_lengths_that_vary(target):
    def calls(q, k, v, g, i, lengths):
        la = linattn.torch
        x, w = v[:, 0], torch.ones(5, 3)
        keys = {"key_lengths": lengths[:, None]}
        return outputs((
            la.causal(q, k, v, return_state=True, **keys),
            la.gated(q, k[:1], v[:, :1], g, return_state=True, **keys),
            la.gated(q, k[:, :1], v[:, :1], g, key_lengths=lengths[:, None] + torch.arange(3)),
            la.causal(q, k, v, block=4, return_state=True, **keys),
            la.gated_delta(q, k[:, :1] / 4, v[:, :1], g, 0.5 + 0 * g, block=2**40),
            la.noncausal(q, k, v, **keys),
            la.mlstm(q, k, v, i, g, return_state=True, **keys)[0],
            la.linear_scan(x.sigmoid(), x, reverse=True, return_state=True),
            la.wkv(x, x, torch.ones(5), torch.ones(5), key_lengths=lengths)[0],
            la.selective_scan(
                x, x, -torch.ones(5, 2), x[..., :2], x[..., 2:4], D=torch.ones(5), z=x,
                softplus=True, key_lengths=lengths, return_state=True,
            ),
            la.causal_conv1d(x, w, return_state=True),
        ))  # fmt: skip

    def args(batch, n):
        q, k, v = drawn(batch, 3, n, 4), drawn(batch, 3, n, 4), drawn(batch, 3, n, 5)
        gates = -drawn(batch, 3, n).abs(), drawn(batch, 3, n)
        return q, k, v, *gates, torch.arange(batch) * 3

    both = {0: DYNAMIC, 2: DYNAMIC}
    proto = exported(
        Function(calls), args(2, 6), dynamic_shapes=((*[both] * 5, {0: DYNAMIC}),),
        **target.options,
    )  # fmt: skip
    convolutions = {x for x in kinds(proto) if x.endswith("CausalConvWithState")}
    assert bool(convolutions) == (target.operator != "-")
    for given in (args(2, 6), args(3, 11), args(1, 2)):
        close_to(run(proto, given), [x.numpy() for x in calls(*given)])


@pytest.mark.slow
def test_dimensions_of_heads_that_vary():
    args = drawn(2, 3, 6, 4), drawn(2, 3, 6, 4), drawn(2, 3, 6, 5)
    shapes = (({0: DYNAMIC, 1: DYNAMIC},) * 3,)
    proto = exported(Function(linattn.torch.causal), args, dynamic_shapes=shapes)
    assert "Scan" in kinds(proto)
    args = drawn(1, 5, 6, 4), drawn(1, 5, 6, 4), drawn(1, 5, 6, 5)
    close_to(run(proto, args), [linattn.torch.causal(*args).numpy()])


def test_results_of_16_bits_are_rounded_once():
    args = tuple(drawn(2, 6, d, seed=d).half() for d in (4, 4, 5))
    o, s, z = run(exported(Function(_with_state), args), args)
    assert (o.dtype, s.dtype, z.dtype) == (np.float16, np.float32, np.float32)
    expected, state = linattn.causal(*(x.double().numpy() for x in args), return_state=True)
    close(o, expected, atol=roundings(2, expected, dtype=np.float16))
    close_to([s, z], [state.s, state.z])


def _with_state(q, k, v):
    o, state = linattn.torch.causal(q, k, v, return_state=True)
    return o, state.s, state.z


def test_maps():
    maps = linattn.feature_maps
    names = ["identity", "relu", "elu", "softplus", "exp", "l2norm", "dpfp"]
    objects = [
        maps.DPFP(3, normalize=False),
        maps.get("relu").normalized(),
        maps.Rebased(),
        maps.Taylor(scale=0.5),
        maps.PositiveRandomFeatures.sample(4, 6, rng=0, hyperbolic=True),
        maps.RandomFourierFeatures.sample(4, 6, rng=0, temperature=0.5),
        maps.GeneralizedRandomFeatures.sample(4, 6, rng=0, fn="softplus"),
    ]

    def mapped(x):
        return [linattn.torch.feature_maps.get(phi)(x) for phi in [*names, *objects]]

    x = drawn(5, 4) * torch.tensor([[1.0], [10.0], [0.1], [-3.0], [0.0]])
    x = x.clamp(-20, 20)
    results = run(exported(Function(mapped), (x,)), (x,))
    wide = x.double().numpy()
    for actual, given in zip(results, [*names, *objects], strict=True):
        phi = twin(maps.get(given))
        allowed = ROUNDINGS * 2.0**-24 * (abs(phi(wide)) + sensitivity(phi, wide))
        assert (abs(actual - phi(wide)) <= allowed + np.finfo(np.float32).tiny).all(), given


def test_a_state_is_written_to():
    """A step in place becomes a step, and a new state."""

    def step(x, s):
        o, _ = linattn.torch.gated_step(x, x, x, torch.zeros(2), linattn.State(s), in_place=True)
        return o, s

    x, s = drawn(2, 4), drawn(2, 4, 4)
    actual = run(exported(Function(step), (x, s.clone())), (x, s))
    o, after = linattn.gated_step(
        *[x.double().numpy()] * 3, np.zeros(2), linattn.State(s.double().numpy())
    )
    close_to(actual, [o, after.s])


@pytest.mark.slow
def test_exporter_of_pytorch_knows_the_operators(tmp_path):
    args = drawn(2, 3, 6, 4), drawn(2, 3, 6, 4), drawn(2, 3, 6, 5)
    file = tmp_path / "model.onnx"
    torch.onnx.export(Function(linattn.torch.causal).eval(), args, file, dynamo=True, verbose=False)
    proto = onnx.load(file)
    assert "com.microsoft:LinearAttention" in kinds(proto)
    close_to(run(proto, args), [linattn.torch.causal(*args).numpy()])


@pytest.mark.slow
def test_file(tmp_path):
    x = drawn(2, 6, 5)
    file = tmp_path / "model.onnx"
    exported(
        Function(lambda x: linattn.torch.causal_conv1d(x, torch.ones(5, 3))), (x,), f=file,
        external_data=False, input_names=["tokens"],
    )  # fmt: skip
    proto = onnx.load(file)
    assert [x.name for x in proto.graph.input] == ["tokens"]
    assert "CausalConvWithState" in {x.op_type for x in nodes(proto.graph)}


@pytest.mark.slow
def test_an_export_is_silent_if_asked(interpreter):
    script = """
import torch, linattn.torch.nn, linattn.torch.onnx
layer = linattn.torch.nn.LinearAttention(16, num_heads=2).eval()
linattn.torch.onnx.export(layer, (torch.ones(1, 10, 16),), verbose=False)
"""
    assert interpreter(script, timeout=120) == ("", "")


@pytest.mark.slow
def test_rows_of_a_pool():
    """Their check is an operator of graphs, which ONNX's own take over."""

    class Model(torch.nn.Module):
        def forward(self, q, s, indices):
            return linattn.torch.delta(
                q, q, q, q[..., 0], initial_state=linattn.State(s), state_indices=indices,
                return_state=True,
            )[0]  # fmt: skip

    q, s, indices = 0.1 * torch.ones(2, 3, 6, 4), torch.ones(5, 3, 4, 4), torch.tensor([3, 0])
    with torch.no_grad():
        program = linattn.torch.onnx.export(Model().eval(), (q, s, indices))
    assert not [x for x in program.model.graph if x.op_type == "pool_rows"]
