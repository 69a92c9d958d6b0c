"""The plan of the house: what importing it loads, which room may import which, how long a file may be."""

import ast
import re
import subprocess
import sys
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
PACKAGE = ROOT / "src" / "anechoic"
CONTRIBUTING = ROOT / "CONTRIBUTING.md"
MAX_LINES = 450

# Optional or slow: loaded by what needs them, when it needs them.
NOT_LOADED = ("torch", "sklearn", "opacus", "flwr", "matplotlib", "pandas", "jax", "dp_accounting", "rich")

# The storeys, from the ground up. A room is a module or package directly under anechoic; it imports rooms of
# storeys below its own, wherever in a file the import stands, and of its own storey where no circle closes.
STOREYS = [
    {"errors", "_validate", "_serialize", "_patience"},
    {"algebra", "keys", "statement"},
    {"participation", "units", "noise"},
    {"workloads", "sampling", "runs"},
    {"strategies", "batches"},
    {"sensitivity"},
    {"losses", "accounting"},
    {"lower_bounds", "plots", "mechanism", "testing"},
    {"optimize", "audit", "theory"},
    {"planning", "extend", "selection", "budget"},
    {"torch", "federated", "flower", "functional", "streaming", "linear"},
    {"app", "demo", "engines", "trainers"},
    {"cli", "__main__"},
]
STOREY = {room: level for level, rooms in enumerate(STOREYS) for room in rooms}

# The numerical core: everything up to and including planning.
CORE = {room for room, level in STOREY.items() if level <= STOREY["planning"]}
CORE_PACKAGES = {"numpy", "scipy", "dp_accounting", "cryptography", "threadpoolctl", "filelock"}
# Rows of a noise stream may be torch's arrays; charts are drawn by matplotlib, where they are asked for.
ALSO = {
    "anechoic.noise.torch_arrays": {"torch"},
    "anechoic.noise.rounding.rows": {"torch"},
    "anechoic.noise.device_rows": {"torch"},
    "anechoic.budget.entries": {"psycopg"},
    "anechoic.plots.curves": {"matplotlib"},
    "anechoic.plots.mechanism": {"matplotlib"},
    "anechoic.plots.plan": {"matplotlib"},
    "anechoic.plots.style": {"matplotlib"},
    "anechoic.statement.page": {"jinja2"},
}

# Lazy imports are for other people's packages, and for the command line, which starts fast.
LAZY = {"cli"}
# Names of anechoic.torch come when they are asked for; planning, which brings all optimisers, where it plans.
_PLAN = {"anechoic.planning.result"}
DEFERRED = {
    "anechoic.torch.engine": _PLAN,
    "anechoic.torch.setup.arguments": _PLAN,
    "anechoic.torch.setup.build_run": _PLAN | {"anechoic.torch.setup.planned"},
}

FILES = sorted(PACKAGE.rglob("*.py"))


def module_name(path):
    parts = path.relative_to(PACKAGE.parent).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def imports_of(source, modules):
    """(line, absolute dotted name, at the top) of every import, in functions and for the type checker too.

    `from anechoic.a import b` names the module anechoic.a.b where there is one, else anechoic.a.
    """
    tree = ast.parse(source)
    for node in ast.walk(tree):
        top = node in tree.body
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name, top) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            if node.level:
                yield node.lineno, "." * node.level + (node.module or ""), top
                continue
            for alias in node.names:
                below = f"{node.module}.{alias.name}"
                yield node.lineno, below if below in modules else node.module, top


def fault(name, imported, top):
    """Why the module `name` may not import `imported` there, or None."""
    room = name.split(".")[1]
    first, *rest = imported.split(".")
    if first == "":
        return "write the whole name: a relative import hides the storey"
    if first != "anechoic":
        allowed = room not in CORE or first in CORE_PACKAGES | ALSO.get(name, set())
        return (
            None
            if allowed or first in sys.stdlib_module_names
            else "the core needs " + ", ".join(sorted(CORE_PACKAGES))
        )
    if not rest:
        return "import the room that defines it, not the package's public names"
    deferred = name == "anechoic.torch" or imported in DEFERRED.get(name, ())
    if not top and room not in LAZY and not deferred:
        return "imports of anechoic stand at the top of the file"
    if rest[0] != room and STOREY[rest[0]] > STOREY[room]:
        return f"{rest[0]} stands above {room}"
    return None


def circle(edges):
    """A circle of modules that import one another, or None."""
    done, trail = set(), []

    def walk(module):
        if module in trail:
            return [*trail[trail.index(module) :], module]
        if module in done:
            return None
        trail.append(module)
        found = next((found for other in sorted(edges.get(module, ())) if (found := walk(other))), None)
        trail.pop()
        done.add(module)
        return found

    return next((found for module in sorted(edges) if (found := walk(module))), None)


@cache
def house():
    """(faults, edges between modules): all that the source says."""
    modules = {module_name(path) for path in FILES}
    faults, edges = [], {}
    for path in FILES:
        name = module_name(path)
        if name == "anechoic":
            continue
        for line, imported, top in imports_of(path.read_text(encoding="utf-8"), modules):
            if why := fault(name, imported, top):
                faults.append(f"{path.relative_to(ROOT)}:{line} imports {imported}: {why}")
            if imported in modules and (top or name.split(".")[1] not in LAZY):
                edges.setdefault(name, set()).add(imported)
    return faults, edges


def test_every_room_has_a_storey():
    rooms = {module_name(path).split(".")[1] for path in FILES if module_name(path) != "anechoic"}
    assert rooms <= STOREY.keys(), f"give {sorted(rooms - STOREY.keys())} a storey"


@pytest.mark.slow
def test_imports_point_down_and_stand_at_the_top():
    faults, _ = house()
    assert not faults, "\n".join(faults)


@pytest.mark.slow
def test_no_circle():
    _, edges = house()
    # a folder's __init__ imports what is in it, and what is in it may be imported through the folder
    found = circle({name: others - {name} for name, others in edges.items()})
    assert not found, f"modules import one another: {' -> '.join(found)}"


def parts_of(edges):
    """The same edges between the parts of a room, which are its folders and the modules beside them."""
    found = {}
    for name, others in edges.items():
        for other in others:
            part, below = (tuple(module.split(".")[1:3]) for module in (name, other))
            if part[0] == below[0] and part != below and len(part) == len(below) == 2:
                found.setdefault(".".join(part), set()).add(".".join(below))
    return found


@pytest.mark.slow
def test_folders_of_a_room_are_storeys_too():
    found = circle(parts_of(house()[1]))
    assert not found, f"parts of a room import one another: {' -> '.join(found)}"


#: Counts that tests/test_counts.py holds, beside the lines of the rooms.
COUNTS = (
    *("calls of a step", "files of a step", "modules of anechoic", "modules of anechoic.errors"),
    *("modules of anechoic.streaming", "modules of anechoic.torch", "kilobytes of the wheel"),
)
#: How far a room's budget may stand above its lines: what became free is given back.
SLACK = 30


def ratchets(text=None):
    """The numbers of CONTRIBUTING.md: a room's lines by its name, and the counts."""
    text = CONTRIBUTING.read_text("utf-8") if text is None else text
    rows = re.findall(r"^\| `([\w. ]+)` \| ([\d,]+) \|", text, re.MULTILINE)
    return {name: int(number.replace(",", "")) for name, number in rows}


def raised_unpaid(before, now):
    """Why the numbers may not go from `before` to `now`, or None.

    A room's budget rises only where two others or more fall, together by as much. A count never rises.
    """
    change = {name: now.get(name, 0) - before.get(name, 0) for name in before.keys() | now.keys()}
    counts = {name for name in change if " " in name}
    if more := sorted(name for name in counts & before.keys() if change[name] > 0):
        return f"counts only fall: {more}"
    rooms = {name: lines for name, lines in change.items() if name not in counts}
    more = {name: lines for name, lines in rooms.items() if lines > 0}
    less = {name: -lines for name, lines in rooms.items() if lines < 0}
    if more and (len(less) < 2 or sum(less.values()) < sum(more.values())):
        return f"{more} grow: lower two other rooms, together by as much (they fall: {less})"
    return None


def git(*words):
    """What git prints, or None where there is no repository or no such revision."""
    found = subprocess.run(["git", *words], cwd=ROOT, capture_output=True, text=True, check=False)
    return found.stdout.strip() if found.returncode == 0 else None


def test_a_budget_only_falls():
    """Against the last merge base: where main left it, else the commit before this one."""
    head = git("rev-parse", "HEAD")
    bases = {git("merge-base", "HEAD", "origin/main"), git("rev-parse", "HEAD^1"), head} - {None}
    texts = [text for base in bases if (text := git("show", f"{base}:CONTRIBUTING.md"))]
    if not texts:
        pytest.skip("no history to compare with: a copy without git")
    for text in texts:
        assert (why := raised_unpaid(ratchets(text), ratchets())) is None, why


def test_a_room_keeps_its_budget():
    """A room that needs more lines than its budget takes them from two others, in the same commit."""
    budgets = {name: lines for name, lines in ratchets().items() if " " not in name}
    lines = {}
    for path in FILES:
        room = module_name(path).split(".")[1] if path.parent != PACKAGE else "root"
        lines[room] = lines.get(room, 0) + len(path.read_text("utf-8").splitlines())
    assert lines.keys() == budgets.keys()
    for room, count in lines.items():
        assert count <= budgets[room], f"{room} has {count} lines, and {budgets[room]} in CONTRIBUTING.md"
        assert budgets[room] <= count + SLACK, f"{room} has {count} lines: lower its budget to that"


def test_folders_only_pass_names_on():
    for path in FILES:
        if path.name != "__init__.py" or path.parent in (PACKAGE, PACKAGE / "torch"):  # these when asked for
            continue
        for node in ast.parse(path.read_text(encoding="utf-8")).body:
            allowed = isinstance(node, (ast.Import, ast.ImportFrom, ast.Expr)) or (
                isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "__all__"
            )
            assert allowed, f"{path.relative_to(ROOT)}:{node.lineno}: give it a file of its own"


def test_one_noun_one_file():
    lengths = {str(path.relative_to(ROOT)): len(path.read_text("utf-8").splitlines()) for path in FILES}
    long = {path: lines for path, lines in lengths.items() if lines > MAX_LINES}
    assert not long, f"aim for 400 lines: is it two nouns? {long}"


#: Standard terms of two fields, each public in a namespace of its own.
NAMESAKES = {"LinearRegression", "SlidingWindow"}


@pytest.mark.slow
def test_no_two_classes_of_one_name():
    homes = {}
    for path in FILES:
        for node in ast.parse(path.read_text(encoding="utf-8")).body:
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                homes.setdefault(node.name, []).append(str(path.relative_to(PACKAGE)))
    twice = {name: found for name, found in homes.items() if len(found) > 1 and name not in NAMESAKES}
    assert not twice, f"call one of them by what sets it apart: {twice}"


# The checks above check something.


def test_a_circle_of_folders_is_seen():
    edges = {"anechoic.a.b.c": {"anechoic.a.d"}, "anechoic.a.d": {"anechoic.a.b.e"}, "anechoic.a.b.e": set()}
    assert circle(edges) is None and circle(parts_of(edges)) == ["a.b", "a.d", "a.b"]


def test_the_reader_sees_every_import():
    source = (
        "import torch.nn\n"
        "from anechoic import toeplitz\n"
        "from anechoic.errors import AnechoicError\n"
        "from . import base\n"
        "if TYPE_CHECKING:\n"
        "    import rich\n"
        "def function():\n"
        "    from anechoic.losses import error\n"
    )
    assert list(imports_of(source, {"anechoic.toeplitz"})) == [
        (1, "torch.nn", True),
        (2, "anechoic.toeplitz", True),
        (3, "anechoic.errors", True),
        (4, ".", True),
        (6, "rich", False),
        (8, "anechoic.losses", False),
    ]


@pytest.mark.parametrize(
    ("name", "imported", "top", "why"),
    [
        ("strategies.blt", "anechoic.algebra.toeplitz", True, None),
        ("strategies.blt", "anechoic.strategies.base", True, None),
        ("strategies.blt", "anechoic.strategies.base", False, "at the top"),
        ("strategies.blt", "anechoic.sensitivity.single", True, "stands above"),
        ("strategies.blt", "anechoic.sensitivity.single", False, "at the top"),
        ("losses.error", "anechoic", True, "public names"),
        ("losses.error", ".rows", True, "whole name"),
        ("losses.error", "scipy.linalg", False, None),
        ("losses.error", "__future__", True, None),
        ("noise.stream", "torch", False, "core needs"),
        ("noise.torch_arrays", "torch", False, None),
        ("torch.engine", "torch.nn", True, None),
        ("torch.engine", "anechoic.demo", True, "stands above"),
        ("cli", "anechoic.torch.engine", False, None),
    ],
)
def test_the_rule_judges_as_written(name, imported, top, why):
    found = fault(f"anechoic.{name}", imported, top)
    assert found is None if why is None else why in found


def test_circles_are_found():
    assert circle({"losses": {"sensitivity"}, "sensitivity": {"strategies"}}) is None
    assert circle({"a": {"b"}, "b": {"c"}, "c": {"b"}}) == ["b", "c", "b"]


@pytest.mark.parametrize(
    ("change", "allowed"),
    [
        ({}, True),
        ({"a": 90}, True),
        ({"a": 110, "b": 45, "c": 45}, True),
        ({"b": 20, "c": 40, "d": 40}, True),
        ({"calls of a step": 200}, True),
        ({"a": 101}, False),
        ({"a": 110, "b": 40}, False),
        ({"a": 110, "b": 49, "c": 49}, False),
        ({"calls of a step": 301}, False),
        ({"d": 9}, False),
    ],
)
def test_the_ratchet_turns_one_way(change, allowed):
    before = {"a": 100, "b": 50, "c": 50, "calls of a step": 300}
    assert (raised_unpaid(before, before | change) is None) == allowed


def test_the_ratchet_reads_both_tables():
    assert ratchets("| `torch` | 1,234 |\n| `calls of a step` | 9 |") == {"torch": 1234, "calls of a step": 9}
