"""Puts linattn's stand-ins for packages in the place of these packages."""

from __future__ import annotations

import importlib
import importlib.util
import pkgutil
import sys
import threading
from types import ModuleType
from typing import NamedTuple, Self


class StandIn(NamedTuple):
    """A package of linattn, and the modules in it that stand for those of another."""

    package: str
    parts: tuple[str, ...]  #: with all that is below them


#: The packages by name, and linattn's stand-ins for them.
PACKAGES = {
    "causal_conv1d": StandIn(
        "linattn.torch.causal_conv1d", ("causal_conv1d_interface", "causal_conv1d_varlen")
    ),
    "fla": StandIn("linattn.torch.fla", ("layers", "modules", "ops", "utils")),
    "flashrnn": StandIn("linattn.torch.flashrnn", ("flashrnn",)),
    "mamba_ssm": StandIn("linattn.torch.mamba_ssm", ("models", "modules", "ops", "utils")),
    "mlstm_kernels": StandIn("linattn.torch.mlstm_kernels", ("torch",)),
}
_lock = threading.RLock()


class Installed:
    """What `linattn.torch.install_as` returns: a context, with `undo`.

    Attributes
    ----------
    names : tuple of str
        The packages that it put stand-ins in the place of.
    """

    def __init__(self, names: tuple[str, ...]) -> None:
        self.names = names
        self._ours: dict[str, ModuleType] = {}
        self._before: dict[str, ModuleType] = {}
        for name in names:
            self._before |= _remove(name)
            self._ours |= _modules(name)
        sys.modules.update(self._ours)

    def undo(self) -> None:
        """Put back what was there before; names that code has imported since stay with it."""
        with _lock:
            for name, module in self._ours.items():
                if sys.modules.get(name) is module:
                    del sys.modules[name]
            sys.modules.update({x: y for x, y in self._before.items() if x not in sys.modules})
            self._ours, self._before, self.names = {}, {}, ()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.undo()

    def __repr__(self) -> str:
        return f"<linattn stands in for {', '.join(self.names) or 'no package'}>"


def install_as(*names: str, replace: bool = False) -> Installed:
    """Let programs import linattn's stand-ins under the names of packages that need a GPU.

    ``mamba_ssm``, ``causal_conv1d`` and ``fla`` (flash-linear-attention) need Triton and CUDA.
    Where they cannot be imported, ``linattn.torch.mamba_ssm``, ``linattn.torch.causal_conv1d`` and
    ``linattn.torch.fla`` take their names in `sys.modules`, with all of their modules, and
    programs that use these packages run unchanged on CPUs.  Of fla these are ``fla.ops`` and
    ``fla.modules``, without its layers and models (`linattn.torch.patch_fla` runs those).
    ``flashrnn`` and ``mlstm_kernels``, with which models of xLSTM compute, are stood in for by
    ``linattn.torch.flashrnn`` and ``linattn.torch.mlstm_kernels``.

    Parameters
    ----------
    *names : str
        ``"mamba_ssm"``, ``"causal_conv1d"``, ``"fla"``, ``"flashrnn"``, ``"mlstm_kernels"``.
    replace : bool, default False
        Also take the place of a package that can be imported.

    Returns
    -------
    Installed
        ``names`` are the packages that it stands in for; ``undo()``, or leaving it as a context,
        puts back what was there before.

    Raises
    ------
    TypeError
        If no name is given.
    ValueError
        If linattn has no stand-in for a name.

    Notes
    -----
    Call it before anything imports these packages: what has been imported is not changed.
    Whether a package can be imported is found out by importing it.  fla can be, with Triton, on
    machines without a GPU, where its functions then fail: pass ``replace=True`` there, or patch it.
    So can flashrnn and mlstm_kernels, whose functions for CPUs are slow, or need Triton.

    ``importlib.util.find_spec`` finds a stand-in.  ``importlib.metadata`` does not, as no
    distribution of that name is installed; ``__version__`` is that of the package whose signatures
    it has, followed by ``+linattn``.  Transformers looks for the functions of these packages when
    it imports a model, and takes the stand-ins' from then on.  Its ``is_mamba_ssm_available()``,
    ``is_flash_linear_attention_available()`` and the like ask for CUDA first, and are False on
    CPUs; no model asks them.

    Modules and names that a stand-in lacks raise ImportError, and tensors on other devices
    TypeError.

    Examples
    --------
    >>> import linattn.torch
    >>> with linattn.torch.install_as("mamba_ssm", "causal_conv1d"):
    ...     from mamba_ssm import Mamba
    >>> Mamba(d_model=16).d_inner
    32
    """
    if not names:
        raise TypeError(f"install_as: no name is given; expected some of {[*PACKAGES]}")
    for name in names:
        if name not in PACKAGES:
            raise ValueError(f"install_as: a name is {name!r}; expected one of {[*PACKAGES]}")
    with _lock:
        wanted = [x for x in dict.fromkeys(names) if not _is_ours(x)]
        return Installed(tuple(x for x in wanted if replace or not _can_import(x)))


def _is_ours(name: str) -> bool:
    return name in sys.modules and sys.modules[name] is sys.modules.get(PACKAGES[name].package)


def _can_import(name: str) -> bool:
    """Whether a package can be imported; a failed attempt leaves no modules behind."""
    if sys.modules.get(name) is not None:
        return True
    if importlib.util.find_spec(name) is None:
        return False
    try:
        importlib.import_module(name)
    except Exception:  # without a GPU packages fail in many ways
        _remove(name)
        return False
    return True


def _remove(name: str) -> dict[str, ModuleType]:
    """Take a package and its modules from `sys.modules`."""
    found = [x for x in sys.modules if x == name or x.startswith(f"{name}.")]
    return {x: sys.modules.pop(x) for x in found}


def _modules(name: str) -> dict[str, ModuleType]:
    """The modules of a stand-in, by the names that they have in the package."""
    package, parts = PACKAGES[name]
    found = {package: importlib.import_module(package)}
    for part in parts:
        _import_all(f"{package}.{part}")
        found |= _below(f"{package}.{part}")
    return {x.replace(package, name, 1): module for x, module in found.items()}


def _import_all(name: str) -> None:
    module = importlib.import_module(name)
    for below in pkgutil.walk_packages(getattr(module, "__path__", ()), f"{name}."):
        importlib.import_module(below.name)


def _below(name: str) -> dict[str, ModuleType]:
    """A module that is imported, and the public ones in it."""
    return {
        x: module for x, module in sys.modules.items()
        if f"{x}.".startswith(f"{name}.") and "._" not in x.removeprefix(name)
    }  # fmt: skip
