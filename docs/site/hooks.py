"""What MkDocs does not do by itself: pages from outside docs/, links that lead there, and pages made of the code.

Every page keeps its place in the repository; `page_of` and `file_of` translate between that and the site's.
"""

from __future__ import annotations

import ast
import inspect
import posixpath
import re
import textwrap
from pathlib import Path

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

import wingbar
from wingbar.config.recipes import GROUPS, START_HERE

ROOT = Path(__file__).parents[2]
AT_TOP = {"README.md": "index.md", "CHANGELOG.md": "CHANGELOG.md", "CONTRIBUTING.md": "CONTRIBUTING.md"}
AT_TOP |= {"SECURITY.md": "SECURITY.md"}
WIDTH = 96  # of a signature that stands in one line
LINK = re.compile(r"(\]\()([^)\s#:]+)((?:#[^)\s]*)?\))")


def page_of(path: str) -> str:
    """Where a file of the repository stands in the site."""
    if path in AT_TOP:
        return AT_TOP[path]
    return path.removeprefix("docs/") if path.startswith("docs/") else f"repository/{path}"


def file_of(page: str) -> str:
    """The file of the repository that a page was made of."""
    back = {site: path for path, site in AT_TOP.items()}
    return back.get(page) or (page.removeprefix("repository/") if page.startswith("repository/") else f"docs/{page}")


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add what is linked and lies outside docs/, and what is made of the code."""
    made = {"api.md": api(), "recipes.md": recipes()}
    for name, text in made.items():
        files.append(File.generated(config, name, content=text))
    waiting = [*AT_TOP, *(f"docs/{file.src_uri}" for file in files if file.src_uri.endswith(".md"))]
    for path in (path for path in waiting if path.removeprefix("docs/") not in made):
        if files.get_file_from_path(page_of(path)) is None:
            files.append(File.generated(config, page_of(path), abs_src_path=str(ROOT / path)))
        text = (ROOT / path).read_text("utf-8") if path.endswith(".md") else ""
        targets = (resolved(path, found[2]) for found in LINK.finditer(text))
        waiting += [target for target in targets if (ROOT / target).is_file() and target not in waiting]
    return files


def on_page_markdown(markdown: str, *, page: Page, **_: object) -> str:
    """Links as the site has them."""
    here = page.file.src_uri

    def moved(found: re.Match[str]) -> str:
        target = posixpath.relpath(page_of(resolved(file_of(here), found[2])), posixpath.dirname(here) or ".")
        return f"{found[1]}{target}{found[3]}"

    return LINK.sub(moved, markdown)


def resolved(path: str, link: str) -> str:
    """The file that a link in another leads to; of a folder, its README.md."""
    target = posixpath.normpath(posixpath.join(posixpath.dirname(path), link))
    return f"{target}/README.md" if (ROOT / target / "README.md").is_file() and target != "." else target


# --- pages made of the code ------------------------------------------------------------------------------------------


def recipes() -> str:
    """What `wingbar recipes` prints."""
    parts = ["# Recipes", START_HERE]
    for kind, some in GROUPS.items():
        rows = (f"| `{name}` | {' '.join((inspect.getdoc(recipe) or '').split())} |" for name, recipe in some.items())
        parts += [f"## {kind}", "\n".join(["| recipe | what, cost, expected result |", "| --- | --- |", *rows])]
    return "\n\n".join(parts)


def api() -> str:
    """Every name that `import wingbar` has, as its module says it."""
    parts = ["# Python", inspect.getdoc(wingbar) or ""]
    for name, home in sorted(wingbar.homes.items(), key=lambda item: item[0].lower()):
        source = ROOT / "src" / Path(*home.split(".")).with_suffix(".py")
        path = source if source.exists() else source.with_suffix("") / "__init__.py"
        parts += [f"## {name}", described(ast.parse(path.read_text("utf-8")), name, home)]
    return "\n\n".join(parts)


def described(module: ast.Module, name: str, home: str) -> str:
    """Signature and docstring of a function, or of a class with those of its methods; a value is only named."""
    found = next((node for node in module.body if getattr(node, "name", "") == name), None)
    if not isinstance(found, ast.FunctionDef | ast.ClassDef):
        return f"A value in `{home}`."
    inner = [one for one in found.body if isinstance(one, ast.FunctionDef)] if isinstance(found, ast.ClassDef) else []
    public = [one for one in inner if ast.get_docstring(one) and (one.name == "__call__" or one.name[0] != "_")]
    methods = [f"**`{signature(one)}`** {ast.get_docstring(one)}" for one in public]
    return "\n\n".join([f"```python\n{signature(found)}\n```", f"In `{home}`. {shown(found)}", *methods])


def shown(node: ast.FunctionDef | ast.ClassDef) -> str:
    """A docstring, its examples as code."""
    text = ast.get_docstring(node) or ""
    return re.sub(
        r"(?:^>>>.*\n?(?:.+\n?)*)+", lambda found: f"\n```python\n{found[0].strip()}\n```\n", text, flags=re.M
    )


def signature(node: ast.FunctionDef | ast.ClassDef) -> str:
    """As it is typed; a class's are its constructor's, or the fields it has."""
    built = next((one for one in getattr(node, "body", ()) if getattr(one, "name", "") == "__init__"), None)
    taken = node if isinstance(node, ast.FunctionDef) else built
    if taken is None:
        words = ",\n    ".join(ast.unparse(one) for one in node.body if isinstance(one, ast.AnnAssign))
        return f"{node.name}(\n    {words},\n)"
    result = f" -> {ast.unparse(taken.returns)}" if taken.returns and taken is node else ""
    words = ast.unparse(taken.args).removeprefix("self").removeprefix(", ")
    one_line = f"{node.name}({words}){result}"
    return (
        one_line
        if len(one_line) <= WIDTH
        else f"{node.name}(\n{textwrap.indent(textwrap.fill(words, WIDTH - 8), '    ')}\n){result}"
    )
