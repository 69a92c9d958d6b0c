"""Text by section that is on every machine: the docstrings of Python's own library."""

from __future__ import annotations

import ast
import os
import sysconfig
import warnings
from collections.abc import Iterator
from pathlib import Path

#: Folders that are not the library itself.
_OTHERS = frozenset({"site-packages", "dist-packages", "test", "tests", "__pycache__"})


def docstrings(directory: str | os.PathLike[str] | None = None) -> dict[str, str]:
    """Docstrings by section: of a module, of a function in it, or of a class with its methods.

    A text is counted once, under the first name that has it; the white space in it is made single spaces.
    They differ a little between versions of Python, under whose licence they are.

    Args:
        directory: with `*.py`, searched to the bottom but for tests and installed packages; None for the
            library of the Python that runs.

    Returns:
        Texts by name, such as "json.decoder.JSONDecoder", in the order of the files' paths.

    Raises:
        FileNotFoundError: the folder is not there, or holds no docstring.
    """
    folder = Path(sysconfig.get_paths()["stdlib"] if directory is None else directory)
    found: dict[str, str] = {}
    known: set[str] = set()
    for path in sorted(folder.rglob("*.py")):
        parts = path.relative_to(folder).with_suffix("").parts
        if _OTHERS.isdisjoint(parts):
            for name, text in _sections(".".join(parts).removesuffix(".__init__"), path):
                if text and text not in known:
                    known.add(text)
                    found[name] = text
    if not found:
        raise FileNotFoundError(
            f"directory={str(folder)!r} holds no Python module with a docstring: name a folder of sources, or"
            " none for Python's own library (some installations leave its sources out)."
        )
    return found


def _sections(module: str, path: Path) -> Iterator[tuple[str, str]]:
    try:
        with warnings.catch_warnings(action="ignore"):  # of escapes in what is read here, not run
            tree = ast.parse(path.read_bytes())
    except (SyntaxError, ValueError):  # examples of what is no Python are among the library's files
        return
    yield module, _joined([tree])
    for node in tree.body:
        if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            yield f"{module}.{node.name}", _joined(ast.walk(node))


def _joined(nodes: Iterator[ast.AST] | list[ast.Module]) -> str:
    kinds = ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef
    texts = [ast.get_docstring(node) or "" for node in nodes if isinstance(node, kinds)]
    return " ".join(" ".join(texts).split())
