"""The shape of the package: who may import whom, which names are not allowed, how large things may grow."""

import ast
import builtins
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parents[1] / "src" / "wingbar"
FILES = sorted(PACKAGE.rglob("*.py"))

# A module may import from lower layers, and from its own.
LAYERS = (
    {"errors", "lazy"},
    {"types"},
    {"words", "config", "entry", "oldnames", "schedules"},
    {
        "losses",
        "whitening",
        "state",
        "perturb",
        "heads",
        "encoder",
        "trunks",
        "decoder",
        "weights",
        "data",
        "paper",
        "files",
        "tensors",
        "process",
        "terminal",
    },
    {"criteria"},
    {"methods"},
    {"settings", "limits", "configfile", "form", "embedder"},
    {"train", "evaluate", "show"},
    {"machine"},
    {"stages", "images"},
    {"recipes"},
    {"runfolder"},
    {"provenance", "watch", "sketch", "shelf", "saved", "fitting"},
    {"runs", "doctor", "exam"},
    {"gallery"},
    {"report"},
    {"trial", "story", "bench", "reproduce"},
    {"cli"},
    {"__main__"},
)
LAYER = {name: depth for depth, names in enumerate(LAYERS) for name in names}
ALONE = {
    "data": {"types", "errors", "files", "terminal", "data", "config"},
    "losses": {"types"},
    "perturb": set(),
    "heads": set(),
    "config": {"words"},
}
FORBIDDEN = {"utils", "util", "common", "helpers", "helper", "misc", "core", "tools"}
FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)
BLOCKS = (ast.If, ast.For, ast.While, ast.With, ast.Try, ast.Match)


def part(path: Path) -> str:
    return path.relative_to(PACKAGE).parts[0].removesuffix(".py")


def imported_parts(path: Path) -> set[str]:
    """First name below wingbar of everything the file imports from the package, but for what only types need."""
    found: set[str] = set()
    body = ast.parse(path.read_text(encoding="utf-8")).body
    for node in (inner for outer in body if not _for_types(outer) for inner in ast.walk(outer)):
        if isinstance(node, ast.ImportFrom) and node.module == "wingbar":
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and (node.module or "").startswith("wingbar."):
            found.add(str(node.module).split(".")[1])
        elif isinstance(node, ast.Import):
            found |= {alias.name.split(".")[1] for alias in node.names if alias.name.startswith("wingbar.")}
    return found


def _for_types(node: ast.stmt) -> bool:
    return isinstance(node, ast.If) and isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING"


def functions(path: Path) -> list[ast.FunctionDef]:
    return [node for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))) if isinstance(node, FUNCTIONS)]


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
    own = part(path)
    if own == "__init__":
        return
    for other in imported_parts(path):
        assert LAYER[other] <= LAYER[own], f"{own} imports {other}, which is above it"
        assert other in ALONE.get(own, LAYER.keys()), f"{own} may import {sorted(ALONE[own])} only, not {other}"


def test_no_module_is_a_drawer_for_everything():
    assert not {path.stem for path in FILES} & FORBIDDEN
    assert {part(path) for path in FILES} - {"__init__"} <= LAYER.keys(), "a new part needs its layer in this test"


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(PACKAGE)))
def test_nothing_grows_too_large(path):
    assert len(path.read_text(encoding="utf-8").splitlines()) <= 300
    for function in functions(path):
        arguments = function.args.posonlyargs + function.args.args + function.args.kwonlyargs
        assert body_lines(function) <= 60, f"{function.name} is too long"
        assert nesting(function) <= 3, f"{function.name} is nested too deeply"
        assert function.name != "__init__" or len(arguments) <= 1 + 6, "a constructor of more than six arguments"


def test_core_knows_no_terminal_and_no_fixed_device():
    for path in FILES:
        if LAYER.get(part(path), 99) <= LAYER["methods"] and part(path) not in ("data", "terminal"):
            text = path.read_text(encoding="utf-8")
            assert ".cuda()" not in text and "print(" not in text and "import rich" not in text, path


def test_one_module_talks_and_one_writes():
    """Names of files reach people through `terminal` alone; text appears whole, through `files` alone."""
    for path in FILES:
        called = [node.func for node in ast.walk(ast.parse(path.read_text("utf-8"))) if isinstance(node, ast.Call)]
        names = {node.id for node in called if isinstance(node, ast.Name)}
        methods = {node.attr for node in called if isinstance(node, ast.Attribute)}
        assert part(path) == "terminal" or not names & {"print", "Console"}, path
        assert part(path) == "files" or "write_text" not in methods, path


def test_numbers_have_no_hidden_sources():
    """No part of the package draws from numpy's or Python's global stream."""
    for path in FILES:
        text = path.read_text(encoding="utf-8")
        assert "np.random.seed" not in text and "import random" not in text and "np.random.rand" not in text, path


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(PACKAGE)))
def test_every_name_is_bound_somewhere_in_its_module(path):
    """Linter and type checker cannot ask this here: shapes in annotations look like unknown names to them."""
    nodes = list(ast.walk(ast.parse(path.read_text(encoding="utf-8"))))
    bound = {*dir(builtins), "__file__"}
    bound |= {node.name for node in nodes if isinstance(node, (*FUNCTIONS, ast.ClassDef, ast.ExceptHandler))}
    bound |= {node.arg for node in nodes if isinstance(node, ast.arg)}
    bound |= {node.id for node in nodes if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)}
    imports = (alias for node in nodes if isinstance(node, (ast.Import, ast.ImportFrom)) for alias in node.names)
    bound |= {(alias.asname or alias.name).split(".")[0] for alias in imports}
    assert {node.id for node in nodes if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load)} <= bound
