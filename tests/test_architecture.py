"""The shape of the package: who may import whom, which names are not allowed, how large things may grow."""

import ast
import builtins
from collections import Counter
from functools import cache
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parents[1] / "src" / "wingbar"
FILES = sorted(PACKAGE.rglob("*.py"))

# A module may import from lower layers, and from its own. The longest name that fits decides.
LAYERS = (
    {"errors", "lazy"},
    {"types", "together"},
    {"config.words", "config.sections", "config.entry", "config.oldnames"},
    {"models", "data", "methods.losses", "methods.state", "methods.perturb", "methods.schedules"}
    | {"files", "tensors", "process", "terminal"},
    {"methods.criteria"},
    {"methods"},
    {"config"},
    {"models.embedder"},
    {"metrics", "show.figures"}
    | {f"train.{name}" for name in ("loop", "optim", "scaling", "checkpoint", "record", "progress")},
    {"train.machine"},
    {"train.stages", "train.images"},
    {"train.runfolder", "train.distributed"},
    {f"train.{name}" for name in ("provenance", "watch", "sketch", "shelf", "saved", "fitting", "trackers")},
    {"train"},
    {"evaluate"},
    {"show"},
    {"show.report", "use"},
    {"use.export", "use.command"},
    {"reproduce", "installation", "completion"},
    {"submit"},
    {"cli"},
    {"__main__"},
)
LAYER = {name: depth for depth, names in enumerate(LAYERS) for name in names}
ALONE = {
    "data": {"types", "errors", "files", "tensors", "process", "terminal", "data", "config.sections"},
    "methods.losses": {"types", "together"},
    "methods.perturb": {"together"},
    "models.heads": set(),
    "config.sections": {"config.words"},
}
FORBIDDEN = {"utils", "util", "common", "helpers", "helper", "misc", "core", "tools"}
FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)
BLOCKS = (ast.If, ast.For, ast.While, ast.With, ast.Try, ast.Match)


@cache
def parsed(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"))


def dotted(path: Path) -> str:
    return ".".join(path.relative_to(PACKAGE).with_suffix("").parts).removesuffix(".__init__")


def known(name: str, places) -> str:
    """The longest beginning of a dotted name that is among the places."""
    parts = name.split(".")
    beginnings = (".".join(parts[:length]) for length in range(len(parts), 0, -1))
    return next((one for one in beginnings if one in places), name)


def imported(path: Path) -> set[str]:
    """Names below wingbar of everything the file imports from the package, but for what only types need."""
    found: set[str] = set()
    body = parsed(path).body
    for node in (inner for outer in body if not _for_types(outer) for inner in ast.walk(outer)):
        if isinstance(node, ast.ImportFrom) and (node.module or "").partition(".")[0] == "wingbar":
            module = (node.module or "").partition(".")[2]
            found |= {_module(module, alias.name) for alias in node.names}
        elif isinstance(node, ast.Import):
            found |= {alias.name.partition(".")[2] for alias in node.names if alias.name.startswith("wingbar.")}
    return found


def _module(module: str, name: str) -> str:
    """The module itself where a module is imported from a package, else the module that has the name."""
    inner = PACKAGE.joinpath(*module.split("."), name) if module else PACKAGE / name
    is_module = inner.with_suffix(".py").exists() or inner.is_dir()
    return ".".join(filter(None, (module, name))) if is_module else module


def _for_types(node: ast.stmt) -> bool:
    return isinstance(node, ast.If) and isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING"


def functions(path: Path) -> list[ast.FunctionDef]:
    return [node for node in ast.walk(parsed(path)) if isinstance(node, FUNCTIONS)]


def body_lines(function: ast.FunctionDef) -> int:
    docstring = function.body[0].end_lineno - function.body[0].lineno + 1 if ast.get_docstring(function) else 0
    return function.end_lineno - function.lineno + 1 - docstring


def nesting(node: ast.AST, depth: int = 0) -> int:
    deepest = depth
    for child in ast.iter_child_nodes(node):
        if isinstance(child, (*FUNCTIONS, ast.ClassDef, ast.Lambda)):
            continue
        is_elif = isinstance(node, ast.If) and isinstance(child, ast.If) and node.orelse == [child]
        deepest = max(deepest, nesting(child, depth + (isinstance(child, BLOCKS) and not is_elif)))
    return deepest


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(PACKAGE)))
def test_imports_go_downwards_only(path):
    own = dotted(path)
    if path.name == "__init__.py" and own != "methods":  # packages offer names of their modules
        return
    layer, only = known(own, LAYER), ALONE.get(known(own, ALONE))
    for other in imported(path):
        assert LAYER[known(other, LAYER)] <= LAYER[layer], f"{own} imports {other}, which is above it"
        assert only is None or known(other, only) in only, f"{own} may import {sorted(only)} only, not {other}"


def test_no_module_is_a_drawer_for_everything():
    assert not {path.stem for path in FILES} & FORBIDDEN
    assert {known(dotted(path), LAYER) for path in FILES} - {"__init__"} <= LAYER.keys(), "a new part needs its layer"


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(PACKAGE)))
def test_nothing_grows_too_large(path):
    assert len(path.read_text(encoding="utf-8").splitlines()) <= 300
    for function in functions(path):
        arguments = function.args.posonlyargs + function.args.args + function.args.kwonlyargs
        assert body_lines(function) <= 60, f"{function.name} is too long"
        assert nesting(function) <= 3, f"{function.name} is nested too deeply"
        assert function.name != "__init__" or len(arguments) <= 1 + 6, "a constructor of more than six arguments"


def test_no_class_has_the_name_of_another():
    names = Counter(node.name for path in FILES for node in ast.walk(parsed(path)) if isinstance(node, ast.ClassDef))
    assert not [name for name, count in names.items() if count > 1 and not name.startswith("_")]


def test_core_knows_no_terminal_and_no_fixed_device():
    for path in FILES:
        place = known(dotted(path), LAYER)
        if LAYER.get(place, 99) <= LAYER["methods"] and place not in ("data", "terminal"):
            text = path.read_text(encoding="utf-8")
            assert ".cuda()" not in text and "print(" not in text and "import rich" not in text, path


def test_one_module_talks_and_one_writes():
    """Names of files reach people through `terminal` alone; text appears whole, through `files` alone."""
    for path in FILES:
        called = [node.func for node in ast.walk(parsed(path)) if isinstance(node, ast.Call)]
        names = {node.id for node in called if isinstance(node, ast.Name)}
        methods = {node.attr for node in called if isinstance(node, ast.Attribute)}
        assert dotted(path) == "terminal" or not names & {"print", "Console"}, path
        assert dotted(path) == "files" or "write_text" not in methods, path


def test_numbers_have_no_hidden_sources():
    """No part of the package draws from numpy's or Python's global stream."""
    for path in FILES:
        text = path.read_text(encoding="utf-8")
        assert "np.random.seed" not in text and "import random" not in text and "np.random.rand" not in text, path


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(PACKAGE)))
def test_every_name_is_bound_somewhere_in_its_module(path):
    """Linter and type checker cannot ask this here: shapes in annotations look like unknown names to them."""
    nodes = list(ast.walk(parsed(path)))
    bound = {*dir(builtins), "__file__"}
    bound |= {node.name for node in nodes if isinstance(node, (*FUNCTIONS, ast.ClassDef, ast.ExceptHandler))}
    bound |= {node.arg for node in nodes if isinstance(node, ast.arg)}
    bound |= {node.id for node in nodes if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)}
    imports = (alias for node in nodes if isinstance(node, (ast.Import, ast.ImportFrom)) for alias in node.names)
    bound |= {(alias.asname or alias.name).split(".")[0] for alias in imports}
    assert {node.id for node in nodes if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load)} <= bound


def test_no_object_is_asked_whether_it_fits_a_protocol():
    """Since Python 3.12 `isinstance` finds no attribute that `__getattr__` gives, and a module's parts are such."""
    tree = ast.parse((PACKAGE / "types.py").read_text())
    protocols = {
        one.name
        for one in ast.walk(tree)
        if isinstance(one, ast.ClassDef) and any(getattr(base, "id", "") == "Protocol" for base in one.bases)
    }
    asked = [
        f"{path.name}:{call.lineno}"
        for path in FILES
        for call in ast.walk(ast.parse(path.read_text()))
        if isinstance(call, ast.Call) and getattr(call.func, "id", "") == "isinstance"
        if protocols & {getattr(name, "id", "") for name in ast.walk(call.args[1])}
    ]
    assert {"Method", "Comparing", "Targeted"} <= protocols
    assert not asked
