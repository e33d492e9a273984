"""What `patch_fla` replaces, when, and how it is put back."""

import sys
import types
import warnings

import pytest
import torch
from fla_models import build, tokens
from processes import python

import linattn.torch
from linattn.torch import patch_fla, patched
from linattn.torch.patched_fla import _places
from linattn.torch.patched_fla._backend import TYPE, registry_of

GLA = "fla.ops.gla.chunk"


def modules():
    """What fla's modules and their classes have under each name."""
    found = {}
    for name, module in list(sys.modules.items()):
        if name.partition(".")[0] == "fla":
            for attribute, value in list(vars(module).items()):
                found[name, attribute] = value
                if isinstance(value, type):
                    found |= {(name, attribute, x): y for x, y in vars(value).items()}
    return found


def test_everything_is_patched_and_given_back():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        patch_fla().undo()  # imports all that it needs
        before = modules()
        patch = patch_fla()
    names = patched()
    expected = {x.full_name for x in _places.MODULES}
    assert expected <= set(names) and len(names) > 70
    assert repr(patch) == f"<{len(names)} functions of fla run on linattn>"
    assert modules() != before
    patch.undo()
    patch.undo()
    assert patched() == []
    after = modules()
    assert before.keys() == after.keys()
    assert [x for x in before if before[x] is not after[x]] == []
    for name in ("fla.ops.kda.chunk.chunk_kda", "fla.modules.activations.ops.swish_fwd"):
        module, _, attribute = name.rpartition(".")
        assert TYPE not in registry_of(getattr(sys.modules[module], attribute))._backends


def test_every_operator_of_fla_is_patched():
    """Those of the same names in `linattn.torch.fla`, with fla's signatures."""
    with patch_fla():
        found = {x.rpartition(".")[2] for x in patched()}
    missing = {x for x in linattn.torch.fla.__all__ if x.startswith(("chunk_", "fused_"))} - found
    assert missing == set()


def test_names_of_other_modules(monkeypatch):
    """Of functions imported before the patch, and what another program puts there stays."""
    user = types.ModuleType("user")
    monkeypatch.setitem(sys.modules, "user", user)
    patch_fla().undo()
    own = sys.modules[GLA].chunk_gla
    user.mine = user.replaced = own
    with patch_fla():
        assert user.mine is sys.modules[GLA].chunk_gla is not own
        user.later = user.mine
        user.replaced = None
    assert user.mine is user.later is own and user.replaced is None


def test_models_that_are_already_built():
    model, ids = build("GLA").eval(), tokens(1, 5)
    with torch.no_grad(), patch_fla():
        before = model(ids).logits
        after = build("GLA").eval()(ids).logits
    assert torch.equal(before, after)
    with pytest.raises(RuntimeError, match="0 active drivers"):
        model(ids)


def test_tensors_elsewhere_go_to_fla(monkeypatch):
    x = torch.ones(1, 3, 2, 4, device="meta")
    with patch_fla():
        module = sys.modules[GLA]
        monkeypatch.setattr(module.ChunkGLAFunction, "apply", lambda *_: ("theirs", None))
        assert module.chunk_gla(x, x, x, x)[0] == "theirs"
        here = torch.ones(1, 3, 2, 4)
        assert module.chunk_gla(here, here, here, -here)[0].shape == here.shape
        chunk_kda = sys.modules["fla.ops.kda.chunk"].chunk_kda
        backend = registry_of(chunk_kda)._backends[TYPE]
        assert backend.verify("chunk_kda", here, k=here) == (True, None)
        assert not backend.verify("chunk_kda", here, k=x)[0]
        assert not backend.verify("chunk_kda", here, initial_state=(here, x))[0]


def test_another_signature_is_left_alone(monkeypatch):
    patch_fla().undo()
    module = sys.modules[GLA]

    def chunk_gla(q, k, v, gate):
        return q

    chunk_gla.__module__ = GLA
    monkeypatch.setattr(module, "chunk_gla", chunk_gla)
    with pytest.warns(UserWarning, match=r"fla 0\.6\.\d+: fla\.ops\.gla\.chunk\.chunk_gla\(") as w:
        patch = patch_fla()
    assert w[0].filename == __file__
    assert module.chunk_gla is chunk_gla
    assert f"{GLA}.fused_recurrent_gla" not in patched()
    patch.undo()
    monkeypatch.undo()
    monkeypatch.delattr(sys.modules["fla.modules.token_shift"], "TokenShift")
    with pytest.warns(UserWarning, match=r"TokenShift\.apply is not found; it is left"):
        patch_fla().undo()


@pytest.mark.parametrize("missing", ["fla", "triton"])
def test_without_the_packages(monkeypatch, missing):
    for name in [x for x in sys.modules if x.partition(".")[0] == missing]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, missing, None)
    with pytest.raises(ImportError, match=rf"patch_fla needs {missing}.*install -e '\.\[fla\]'"):
        patch_fla()


def test_what_is_not_supported_says_so():
    x = torch.ones(1, 3, 2, 4)
    with patch_fla():
        import fla.modules.fused_cross_entropy as losses
        import fla.ops as ops

        with pytest.raises(NotImplementedError, match="chunk_kda: cp_context"):
            ops.chunk_kda(x, x, x, x, x[..., 0], cp_context=object())
        with pytest.raises(NotImplementedError, match="cross_entropy_loss: process_group"):
            losses.cross_entropy_loss(x[0, 0], torch.zeros(2).long(), process_group=object())
        with pytest.raises(ValueError, match="chunk_gla: g has shape"):
            ops.chunk_gla(x, x, x, x[:, :2])


PROGRAM = """
import sys
import linattn.torch
print(sys.argv[1:], __name__, bool(linattn.torch.patched()), "mamba_ssm" in sys.modules)
"""


def _run(*arguments, libraries="", cwd=None):
    return python("-m", "linattn.torch", *arguments, cwd=cwd, LINATTN_PATCH=libraries)


def test_a_program_without_a_change(tmp_path):
    (tmp_path / "program.py").write_text(PROGRAM)
    path = str(tmp_path / "program.py")
    run = _run(path, "--one", "2", libraries="mamba_ssm, fla")
    assert run.stdout == "['--one', '2'] __main__ True True\n", run.stderr
    run = _run("-m", "program", "x", libraries="mamba_ssm", cwd=tmp_path)
    assert run.stdout == "['x'] __main__ False True\n", run.stderr


@pytest.mark.parametrize(
    ("libraries", "message"),
    [("", "empty or not set"), ("fla,flash", "LINATTN_PATCH is 'flash'; expected some of")],
)
def test_a_program_and_wrong_names(libraries, message):
    run = _run("program.py", libraries=libraries)
    assert run.returncode == 1 and message in run.stderr and not run.stdout
    assert "usage:" in run.stderr
