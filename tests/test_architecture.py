"""The cut of the project: what importing it loads, which room may import which, how long a file may be."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
PACKAGE = ROOT / "src" / "anechoic"
MAX_LINES = 450

# Optional or slow: loaded by what needs them, when it needs them.
NOT_LOADED = ("torch", "opacus", "flwr", "matplotlib", "pandas", "jax", "dp_accounting", "rich")

# A room is a module or package directly under anechoic. At module level, a room imports only rooms of
# earlier lines, or of its own line where that closes no circle.
ORDER = [
    {"errors", "_validate", "_serialize"},
    {"banded", "toeplitz", "_decoder_rows", "_nuclear"},
    {"workloads", "participation", "unit_batch"},
    {"unit_labels", "units", "duplicates"},
    {"strategies", "testing"},
    {"participation_dual", "sensitivity", "losses", "losses_recurrent"},
    {"lp_losses", "lower_bounds_result", "lower_bounds_cycles", "lower_bounds_participation"},
    {"lower_bounds_listed"},
    {"lower_bounds"},
    {"upper_bounds"},
    {"sampling"},
    {"accounting"},
    {"optimize"},
    {"noise"},
    {"mechanism", "statement", "plan_text"},
    {"planning", "runs", "batches", "endless", "composition"},
    {"audit"},
    {"torch", "flower", "streaming", "theory", "report", "data"},
    {"experiments", "demo"},
    {"cli", "__main__"},
]
LEVEL = {room: level for level, rooms in enumerate(ORDER) for room in rooms}

# The numerical core: everything up to and including planning, noise and audits.
CORE = {room for room, level in LEVEL.items() if level <= LEVEL["audit"]}
CORE_PACKAGES = {"numpy", "scipy", "dp_accounting"}

FILES = sorted(PACKAGE.rglob("*.py"))


def module_name(path):
    parts = path.relative_to(PACKAGE.parent).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def module_level(nodes):
    """The statements that run on import: not those of functions, nor those for the type checker only."""
    for node in nodes:
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            continue
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test):
            yield from module_level(node.orelse)
            continue
        yield node
        for field in ("body", "orelse", "finalbody"):
            yield from module_level(getattr(node, field, []))
        for handler in getattr(node, "handlers", []):
            yield from module_level(handler.body)


def imports_of(source, name, is_package):
    """(line, absolute dotted name) of what the source of module `name` imports on import."""
    for node in module_level(ast.parse(source).body):
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            if node.level:
                package = name.split(".") if is_package else name.split(".")[:-1]
                package = package[: len(package) - node.level + 1]
                base = ".".join([*package, *([node.module] if node.module else [])])
            if base == "anechoic":  # from anechoic import toeplitz
                yield from ((node.lineno, f"anechoic.{alias.name}") for alias in node.names)
            else:
                yield node.lineno, base


def all_imports():
    """(path, line, room, imported dotted name), of every file but the package's own __init__."""
    for path in FILES:
        name = module_name(path)
        if name != "anechoic":
            source = path.read_text(encoding="utf-8")
            for line, imported in imports_of(source, name, path.stem == "__init__"):
                yield path.relative_to(ROOT), line, name.split(".")[1], imported


def fault(room, imported, edges):
    """Why `room` may not import the dotted name `imported`, or None. Records the edge between rooms."""
    top, *rest = imported.split(".")
    if top != "anechoic":
        allowed = room not in CORE or top in CORE_PACKAGES or top in sys.stdlib_module_names
        return None if allowed else f"the numerical core needs {', '.join(sorted(CORE_PACKAGES))} only"
    if not rest or rest[0] not in LEVEL:
        return "import the room that defines it, not the package's public names"
    other = rest[0]
    if other == room:
        return None
    edges.setdefault(room, set()).add(other)
    if LEVEL[other] > LEVEL[room]:
        return f"{other} comes after {room} in ORDER"
    return None


def circle(edges):
    """A circle of rooms that import one another, or None."""

    def walk(room, trail):
        if room in trail:
            return [*trail[trail.index(room) :], room]
        return next((found for other in edges.get(room, ()) if (found := walk(other, [*trail, room]))), None)

    return next((found for room in edges if (found := walk(room, []))), None)


def test_importing_the_package_loads_nothing_optional():
    code = f"import sys, anechoic; print(*sorted(set({NOT_LOADED!r}) & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == [], (
        f"import anechoic loads {done.stdout.strip()}: import it where it is used"
    )


def test_every_room_has_a_place_in_the_order():
    rooms = {module_name(path).split(".")[1] for path in FILES if module_name(path) != "anechoic"}
    assert rooms <= LEVEL.keys(), f"give {sorted(rooms - LEVEL.keys())} a line in ORDER"


def test_imports_point_to_earlier_rooms():
    edges, faults = {}, []
    for path, line, room, imported in all_imports():
        if room in LEVEL and (why := fault(room, imported, edges)):
            faults.append(f"{path}:{line} imports {imported}: {why}")
    assert not faults, "\n".join(faults)
    assert not circle(edges), f"rooms import one another: {' -> '.join(circle(edges))}"


def test_one_noun_one_file():
    lengths = {str(path.relative_to(ROOT)): len(path.read_text("utf-8").splitlines()) for path in FILES}
    long = {path: lines for path, lines in lengths.items() if lines > MAX_LINES}
    assert not long, f"aim for 400 lines: is it two nouns? {long}"


# The checks above check something.


def test_the_reader_sees_what_runs_on_import_and_nothing_else():
    source = (
        "import torch.nn\n"
        "from anechoic import toeplitz, BLT\n"
        "from anechoic.errors import AnechoicError\n"
        "from . import base\n"
        "from .. import losses\n"
        "from ..optimize.blt import blt\n"
        "from typing import TYPE_CHECKING\n"
        "if TYPE_CHECKING:\n"
        "    import rich\n"
        "else:\n"
        "    import json\n"
        "try:\n"
        "    import numpy\n"
        "except ImportError:\n"
        "    import math\n"
        "class Late:\n"
        "    import abc\n"
        "    def method(self):\n"
        "        import pandas\n"
        "def function():\n"
        "    import jax\n"
    )
    found = [imported for _, imported in imports_of(source, "anechoic.strategies.blt", is_package=False)]
    assert found == [
        "torch.nn",
        "anechoic.toeplitz",
        "anechoic.BLT",
        "anechoic.errors",
        "anechoic.strategies",
        "anechoic.losses",
        "anechoic.optimize.blt",
        "typing",
        "json",
        "numpy",
        "math",
        "abc",
    ]


@pytest.mark.parametrize(
    ("room", "imported", "why"),
    [
        ("strategies", "anechoic.toeplitz", None),
        ("strategies", "anechoic.strategies.base", None),
        ("strategies", "anechoic.sensitivity.single", "comes after"),
        ("workloads", "anechoic.participation", None),
        ("losses", "anechoic", "public names"),
        ("losses", "anechoic.BLT", "public names"),
        ("losses", "scipy.linalg", None),
        ("losses", "__future__", None),
        ("noise", "torch", "core needs"),
        ("torch", "torch.nn", None),
        ("torch", "anechoic.experiments", "comes after"),
        ("experiments", "anechoic.cli", "comes after"),
        ("cli", "anechoic.torch.engine", None),
    ],
)
def test_the_rule_judges_as_written(room, imported, why):
    found = fault(room, imported, {})
    assert found is None if why is None else why in found


def test_circles_are_found():
    assert circle({"losses": {"sensitivity"}, "sensitivity": {"strategies"}}) is None
    assert circle({"a": {"b"}, "b": {"c"}, "c": {"b"}}) == ["b", "c", "b"]
