"""linattn.torch.fla beside an installed fla: its families and the signatures of its functions."""

import ast
import inspect
import pickle
import re
import typing
from pathlib import Path

import fla_package
import pytest

from linattn.torch import fla

FUNCTIONS = [name for name in fla.__all__ if inspect.isfunction(getattr(fla, name))]
#: Functions of fla.modules, which its folder of operators does not have.
OF_MODULES = {"causal_conv1d", "causal_conv1d_update"}
#: Other names of functions.
SAME_AS = {"chunk_gdn": "chunk_gated_delta_rule",
           "fused_recurrent_gdn": "fused_recurrent_gated_delta_rule"}  # fmt: skip


FORM = re.compile(r"(chunk|fused_recurrent|fused_chunk|parallel|fused_mul_recurrent)_(\w+)")
#: Families whose functions have other names.
NAMES = {"generalized_delta_rule": {"dplr_delta_rule", "iplr_delta_rule"},
         "gated_delta_rule": {"gated_delta_rule", "gdn"}}  # fmt: skip


def table():
    """By family, yes or no."""
    rows = re.findall(r"^(\w+) +(yes|no): ", fla.__doc__, re.MULTILINE)
    return dict(rows)


def test_table_is_of_this_module():
    """The families that are here, and no other, say so."""
    there = set()
    for family, answer in table().items():
        there |= NAMES.get(family, {family}) if answer == "yes" else set()
    matches = {name: FORM.fullmatch(name) for name in FUNCTIONS}
    assert {match[2] for match in matches.values() if match} == there
    others = {name for name, match in matches.items() if not match}
    assert others == OF_MODULES | {"mesa_net_decoding_one_step"}


@fla_package.needed
def test_table_has_every_family():
    assert set(table()) == fla_package.families()


@fla_package.needed
@pytest.mark.parametrize("name", sorted({*FUNCTIONS} - OF_MODULES))
def test_signature(name):
    """Positional parameters in fla's order, with its defaults; more of them by keyword only."""
    theirs = fla_package.parameters(SAME_AS.get(name, name))
    ours = [
        (x.name, x.default if x.default is x.empty else repr(x.default))
        for x in inspect.signature(getattr(fla, name)).parameters.values()
        if x.kind is x.POSITIONAL_OR_KEYWORD
    ]
    assert ours == theirs


def test_stub():
    """Type checkers read the signatures that the functions have (tools/fla_stub.py writes them)."""
    tree = ast.parse(Path(fla.__file__).with_suffix(".pyi").read_text())
    (listed,) = (ast.literal_eval(x.value) for x in tree.body if isinstance(x, ast.Assign))
    assert listed == sorted(fla.__all__)
    stub = {x.name: ast.unparse(x) for x in tree.body if isinstance(x, ast.FunctionDef)}
    assert {*stub} == {*FUNCTIONS} - OF_MODULES
    for name, declared in stub.items():
        signature = str(inspect.signature(getattr(fla, name))).replace("'", "")
        assert declared == ast.unparse(ast.parse(f"def {name}{signature}: ...")), name


@pytest.mark.parametrize("name", FUNCTIONS)
def test_functions_are_in_the_package(name):
    f = getattr(fla, name)
    assert typing.get_type_hints(f).keys() == {*inspect.signature(f).parameters, "return"}
    assert pickle.loads(pickle.dumps(f)) is f


@fla_package.needed
def test_every_form():
    """A family that is here is here in all forms, but for those that fla itself has given up."""
    given_up = {"fused_chunk_gla", "fused_chunk_delta_rule"}
    here = {match[2] for name in FUNCTIONS if (match := FORM.fullmatch(name))}
    for name in fla_package.headers():
        match = FORM.fullmatch(name)
        if match and match[2] in here and name not in given_up:
            assert hasattr(fla, name), name
