"""Functions that a bridge makes are those that one would write by hand."""

import inspect
import pickle
import sys
import types

import pytest

import linattn
from linattn._bridges import bridge
from linattn._docs import templates

pytestmark = pytest.mark.any_isa

MODULE = "linattn_toy"
TOY = bridge.Bridge(
    module=MODULE,
    public=MODULE,
    imports="",
    summary="`linattn.{name}` of toys.",
    given="Toy | None",
    made="Toy",
    words=templates.Vocabulary(given="toy", made="toy", arrays="toys", refused="broken"),
    annotations={"feature_map": "Any"},
    without=("out", "rescaling"),
    added=(bridge.Added("colour", "str", "\ncolour : str\n    Of the toys.", False, ("forward",)),),
    raises=(
        templates.Raised("TypeError", "g", "is blue"),
        templates.Raised("OSError", "", "the box is closed"),
    ),
    notes=(("bonus", "A bonus is two toys."), ("out", "There is none.")),
    examples={"forward": ">>> {function}({operands})", "step": ">>> {name}"},
)


@pytest.fixture
def made(monkeypatch):
    """The functions of all recurrences, which return what they would call."""
    monkeypatch.setitem(sys.modules, MODULE, types.ModuleType(MODULE))

    def call(*operands, **options):
        return operands, options

    functions = bridge.recurrences(TOY, forward=lambda r: call, step=lambda r: call)
    vars(sys.modules[MODULE]).update(functions)
    return functions


def test_arguments(made):
    (operands, state), options = made["gated_step"](1, 2, 3, 4, 5, bonus=6)
    assert (operands, state) == ((1, 2, 3, 4, 6), 5)
    assert options == {
        "scale": 1.0, "feature_map": "identity", "in_place": False, "state_indices": None
    }  # fmt: skip
    assert made["causal"](1, 2, 3, colour="red")[1]["colour"] == "red"
    assert made["gated"](1, 2, 3, 4)[0] == ((1, 2, 3, 4, None),)
    f = bridge.made(linattn.initial_state, TOY, lambda *x, **_: x)
    assert f(1, 2, 3, 4, 5) == (1, 2, 3, 4, 5)


def test_wrong_arguments_are_pythons_errors(made):
    with pytest.raises(TypeError, match=r"^gated\(\) missing 1 required positional argument: 'g'"):
        made["gated"](1, 2, 3)
    with pytest.raises(TypeError, match=r"^noncausal\(\) got an unexpected keyword .* 'colour'"):
        made["noncausal"](1, 2, 3, colour="red")


def test_what_tools_read(made):
    f = made["gated"]
    signature = inspect.signature(f)
    theirs = inspect.signature(linattn.gated)
    assert [*signature.parameters] == [x for x in theirs.parameters if x != "out"] + ["colour"]
    assert signature.parameters["g"].annotation == "Toy | None"
    assert signature.parameters["feature_map"].annotation == "Any"
    assert signature.return_annotation == "Toy | tuple[Toy, State]"
    assert (f.__module__, f.__name__, f.__qualname__) == (MODULE, "gated", "gated")
    assert pickle.loads(pickle.dumps(f)) is f
    assert inspect.getsource(f).lstrip().startswith("def gated(q, k, v, g, *, scale=1.0,")


def test_docstrings(made):
    text = templates.split(made["gated"].__doc__)
    assert text[""].startswith("Causal linear attention") and "`linattn.gated` of toys." in text[""]
    assert "g : toy, shape (..., n)" in text["Parameters"]
    assert text["Parameters"].strip().endswith("\ncolour : str\n    Of the toys.")
    assert "    If an operand is broken.\n" in text["Raises"]
    assert "    If ``g`` is blue.\nValueError" in text["Raises"]
    assert "OSError\n    If the box is closed." in text["Raises"]
    assert "A bonus is two toys." in text["Notes"] and "There is none." not in text["Notes"]
    assert text["Examples"].strip() == f">>> {MODULE}.gated(x, x, x, x[..., 0])"
    assert "``g``" not in made["causal"].__doc__ and "colour" not in made["noncausal"].__doc__
    assert "which avoids that" not in made["causal"].__doc__  # the paragraph "rescaling"


def test_docstrings_of_functions_written_by_hand():
    @bridge.documented(linattn.gated, TOY)
    def gated(q, k, v, g):
        """Gated toys.

        Examples
        --------
        >>> gated
        """

    text = templates.split(gated.__doc__)
    assert text[""].strip().endswith("Gated toys.") and text["Examples"].strip() == ">>> gated"
    assert "scale" not in text["Parameters"] + text["Raises"]
    assert [*text][1:] == ["Parameters", "Returns", "Raises", "Notes", "References", "Examples"]
