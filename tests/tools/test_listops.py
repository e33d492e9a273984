"""Nested lists of digits, and the models that learn to read them."""

import json

import numpy as np
import pytest
from experiment import OTHER, refused, run

torch = pytest.importorskip("torch", reason="PyTorch is not installed")
pytest.importorskip("matplotlib", reason="the experiments draw")


def value_of(tokens):
    """Evaluated by the book, one token after another, with the depth; checks the grammar."""
    left = iter(tokens.tolist())

    def node(token):
        if token < 10:
            return token, 1
        arguments, depths = [], []
        while (inner := next(left)) != 14:
            value, depth = node(inner)
            arguments.append(value)
            depths.append(depth)
        assert 10 <= token < 14 and 2 <= len(arguments) <= 10
        apply = (min, max, lambda x: int(np.median(x)), lambda x: sum(x) % 10)[token - 10]
        return apply(arguments), 1 + max(depths)

    found = node(next(left))
    assert next(left, None) is None
    return found


@pytest.mark.slow
def test_tiny(experiment, tmp_path):
    command = "listops", tmp_path, "--kinds", "softmax", "linear2", "oglu1", "aoglu1"
    first = run(*command)
    facts = json.loads((tmp_path / "listops.json").read_text())
    assert {"command", "machine", "seed", "results"} <= set(facts)
    assert (tmp_path / "listops.png").exists()
    assert all(len(first[x]["test accuracy"]) == 2 for x in ("softmax", "linear2", "aoglu1"))
    assert run(*command) == first  # from its checkpoints
    refused(OTHER, *command, "--steps", "6")


def test_options_that_make_no_sense(experiment, tmp_path, capsys):
    for name, text in (("--seeds", "0"), ("--steps", "-1"), ("--steps", "many")):
        refused("", "listops", tmp_path, name, text)
        assert f"{name}: {text!r}; expected a whole number from 1" in capsys.readouterr().err


def test_fewer_trees_and_seeds(experiment, tmp_path):
    found = run("listops", tmp_path, "--kinds", "linear1", "--trees", "8", "--seeds", "1")
    (accuracy,) = found["linear1"]["test accuracy"]
    assert (accuracy * 8).is_integer()


def test_expressions(experiment):
    """Their values, lengths and depths; no two alike; of the seed alone."""
    distinct = experiment("expressions").distinct
    trees, values = distinct(300, 0, shortest=20, longest=300)
    assert len({x.tobytes() for x in trees}) == len(values) == 300
    for tree, value in zip(trees, values, strict=True):
        assert 20 < len(tree) < 300
        found, depth = value_of(tree)
        assert found == value and 2 <= depth <= 10
    again, _ = distinct(300, 0, shortest=20, longest=300)
    assert all(np.array_equal(x, y) for x, y in zip(trees, again, strict=True))
    other, _ = distinct(300, 1, shortest=20, longest=300)
    assert not {x.tobytes() for x in trees} & {x.tobytes() for x in other}
    shallow, _ = distinct(50, 0, shortest=2, longest=50, depth=2)
    assert {value_of(x)[1] for x in shallow} == {2}


def test_how_expressions_are_drawn(experiment):
    """A quarter of the nodes are operators, all of four alike, with 2 to 10 arguments alike."""
    levels = experiment("expressions")._grown(40_000, np.random.default_rng(0), 10)
    assert len(levels) == 10 and (levels[-1].token < 10).all()
    for level in levels[:3]:
        n, inner = len(level.token), level.token >= 10
        assert abs(inner.mean() - 0.25) < 5 * np.sqrt(0.25 * 0.75 / n)
        for drawn, least, most in (
            (level.token[~inner], 0, 9), (level.token[inner], 10, 13), (level.arguments, 2, 10),
        ):  # fmt: skip
            shares = np.bincount(drawn - least) / len(drawn)
            p = 1 / (most - least + 1)
            assert len(shares) == most - least + 1
            assert (abs(shares - p) < 5 * np.sqrt(p * (1 - p) / len(drawn))).all()


def test_lengths_that_make_no_sense(experiment):
    distinct = experiment("expressions").distinct
    for shortest, longest in ((5, 5), (5, 6), (-1, 5)):
        with pytest.raises(ValueError, match="expected 0 <= shortest and a length between"):
            distinct(1, 0, shortest=shortest, longest=longest)
    with pytest.raises(ValueError, match="expected lengths that are more common"):
        distinct(11, 0, shortest=0, longest=9, depth=1)  # there are ten digits


def test_guesses(experiment):
    """The commonest value is judged apart from that of the first operator."""
    guesses = experiment("listops").guesses
    rows = [np.array([x, 1, 2, 14]) for x in (10, 10, 10, 11, 11)]
    found = guesses(rows, np.array([0, 0, 0, 9, 9]), rows[2:], np.array([0, 9, 8]))
    assert found == {"commonest value": 1 / 3, "commonest value of the first operator": 2 / 3}


def test_what_is_penalised(experiment):
    """The weights of OGLU and AOGLU that leave orthogonality, in every layer."""
    listops = experiment("listops")
    for kind in listops.KINDS:
        torch.manual_seed(0)
        model = listops.Reader(kind, 20, width=16, heads=2, depth=2, feedforward=16)
        assert model.penalty(1.0) < 1e-6  # as drawn, orthogonal to float32's rounding
        with torch.no_grad():
            for x in model.parameters():
                x.mul_(2)
        # W W^T - I is 3 I where W has twice its size: (3 * 3) / 8 in the mean over 8 x 8.
        units = int(kind[-1]) if kind[:-1] in ("oglu", "aoglu") else 0
        expected = torch.tensor(2 * units * 9 / 8)
        torch.testing.assert_close(model.penalty(1.0), expected, rtol=1e-5, atol=1e-6)


def test_batches_of_like_lengths(experiment):
    listops, rng = experiment("listops"), np.random.default_rng(0)
    trees = [np.zeros(n, np.int8) for n in rng.integers(1, 1000, 500)]
    rows = [listops.alike(trees, 8, torch.Generator().manual_seed(i)) for i in range(40)]
    lengths = [[len(trees[i]) for i in x] for x in rows]
    assert all(len(x) == 8 for x in rows)
    assert np.mean([max(x) - min(x) for x in lengths]) < 300  # 780 of 8 that are drawn alone
    assert 400 < np.mean(lengths) < 600  # no length is preferred
