"""The package's rooms import in one direction, and no module at a second thought."""

import ast
from pathlib import Path

import linattn

PACKAGE = Path(linattn.__file__).parent
#: From the lowest on; a room imports those before it.  Modules that are in no room count as one.
ROOMS = (
    "_version", "_core", "feature_maps", "_states", "_call", "_docs", "operators", "ufuncs",
    "linattn", "reference", "_cli", "__main__", "_types", "_blocks", "_bridges", "dask", "jax",
    "mpi", "torch/_core", "torch/operators", "torch/feature_maps", "torch/distributed",
    "torch/fla", "torch/nn", "torch/causal_conv1d", "torch/mamba_ssm",
    "torch/flashrnn", "torch/mlstm_kernels", "torch/_patch", "torch/patched_fla",
    "torch/patched_xlstm", "torch/transformers", "torch", "torch/__main__",
    "torch/onnx",
)  # fmt: skip
FILES = {path: path.relative_to(PACKAGE).with_suffix("").parts for path in PACKAGE.rglob("*.py")}
MODULES = {parts[:-1] if parts[-1] == "__init__" else parts for parts in FILES.values()}


def room(module: tuple[str, ...]) -> str:
    """The room of a module, given by its path in the package."""
    if not module:
        return "linattn"
    return "/".join(module[: 2 if module[0] == "torch" else 1])


def targets(node: ast.Import | ast.ImportFrom, parts: tuple[str, ...]) -> set[tuple[str, ...]]:
    """The modules of the package that a statement imports."""
    if isinstance(node, ast.Import):
        named = {tuple(x.name.split(".")) for x in node.names}
        return {x[1:] for x in named if x[0] == "linattn" and x[1:] in MODULES}
    stem = tuple(node.module.split(".")) if node.module else ()
    if node.level:
        stem = *parts[: len(parts) - node.level], *stem
    elif stem[:1] == ("linattn",):
        stem = stem[1:]
    else:
        return set()
    names = {(*stem, x.name) for x in node.names}
    return (names & MODULES) or ({stem} & MODULES)


def imports(path: Path) -> list[tuple[ast.AST, tuple[str, ...]]]:
    """The imports of the package's own modules, but those for types alone."""
    tree = ast.parse(path.read_text())
    typing = {
        id(x)
        for branch in ast.walk(tree)
        if isinstance(branch, ast.If) and "TYPE_CHECKING" in ast.unparse(branch.test)
        for x in ast.walk(branch)
    }
    nodes = (x for x in ast.walk(tree) if isinstance(x, (ast.Import, ast.ImportFrom)))
    return [(x, y) for x in nodes if id(x) not in typing for y in targets(x, FILES[path])]


def test_one_direction():
    for path, parts in FILES.items():
        own = parts[:-1] if parts[-1] == "__init__" else parts
        for node, other in imports(path):
            assert ROOMS.index(room(other)) <= ROOMS.index(room(own)), (path, node.lineno, other)


def test_none_within_a_function():
    for path, parts in FILES.items():
        tree = ast.parse(path.read_text())
        for function in ast.walk(tree):
            if isinstance(function, (ast.FunctionDef, ast.AsyncFunctionDef)):
                for node in ast.walk(function):
                    if isinstance(node, (ast.Import, ast.ImportFrom)):
                        assert not targets(node, parts), (path, node.lineno)


def test_few_modules_outside_of_rooms():
    assert len([*PACKAGE.glob("*.py")]) <= 12
