"""Pages that are written before the site is read: the reference, from the `__all__` of each room, and what
stands at the top of the repository.
"""

import ast
from importlib import import_module
from pathlib import Path

from docstrings import inline

#: Title -> rooms, in the order of the reference. A room that is not here comes at the end.
GROUPS = {
    "Design": [
        "",
        "workloads",
        "strategies",
        "optimize",
        "lower_bounds",
        "participation",
        "sampling",
        "units",
        "accounting",
        "noise",
    ],
    "Train": ["torch", "torch.sources", "trainers", "trainers.transformers", "trainers.lightning", "linear"],
    "Federate": ["federated", "flower"],
    "Publish": ["streaming", "budget"],
    "Examine": ["audit", "theory", "testing"],
    "Extend": ["extend", "runs", "errors"],
}


#: Passed on by a second room, which has no entry for them.
AGAIN = {("", "Units"), ("", "AnechoicError")}


#: What is returned and stands in no `__all__`, on the page of whoever returns it.
RETURNED = {"": ["planning.result.Plan", "planning.records.PlanRow", "planning.advice.Advice"]}


def rooms(source):
    """Room -> its public names, as `__all__` has them."""
    found = {}
    for path in sorted(source.rglob("*.py")):
        for node in ast.parse(path.read_text("utf-8")).body:
            if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "__all__":
                room = path.relative_to(source).with_suffix("").as_posix()
                found[room.removesuffix("__init__").strip("/").replace("/", ".")] = ast.literal_eval(
                    node.value
                )
    return found


def can_be_had(room):
    """Whether a room can be imported here; one whose extra is missing is left out, and named."""
    try:
        import_module(f"anechoic.{room}".rstrip("."))
    except ModuleNotFoundError as missing:
        if (missing.name or "").startswith("anechoic"):
            raise
        print(f"anechoic.{room} is not in the reference: {missing.name} is not installed")
        return False
    return True


def described(room, name):
    """What has an entry on the page of a room; None for a room, and for what has its entry elsewhere."""
    entry = getattr(import_module(f"anechoic.{room}".rstrip(".")), name)
    again = (room, name) in AGAIN
    return entry if callable(entry) and not again else None


def page(room, names):
    """The page of a room, in reStructuredText, which autodoc writes too."""
    full = f"anechoic.{room}".rstrip(".")
    lines = [full, "=" * len(full), "", f".. automodule:: {full}", "   :no-members:", ""]
    for name in names:
        entry = described(room, name)
        if entry is not None:
            kind = "autoclass" if isinstance(entry, type) else "autofunction"
            lines += [f".. {kind}:: {full}.{name}", ""]
    for name in RETURNED.get(room, ()):
        lines += [f".. autoclass:: anechoic.{name}", ""]
    return "\n".join(lines)


def write(app):
    folder = Path(app.srcdir) / "api"
    source = Path(app.srcdir).parent / "src" / "anechoic"
    found = {room: names for room, names in rooms(source).items() if can_be_had(room)}
    groups = dict(GROUPS)
    if rest := [room for room in found if not any(room in group for group in GROUPS.values())]:
        groups["More"] = rest
    lines = [
        "API reference",
        "=============",
        "",
        "Every public name, by room. All other names may change.",
        "",
    ]
    folder.mkdir(exist_ok=True)
    for title, members in groups.items():
        members = [room for room in members if room in found]
        lines += [title, "-" * len(title), "", ".. toctree::", "   :hidden:", ""]
        lines += [f"   {room or 'anechoic'} <{room or 'anechoic'}>" for room in members] + [""]
        for room in members:
            full = f"anechoic.{room}".rstrip(".")
            summary = (import_module(full).__doc__ or "").strip().splitlines()[0]
            summary = inline(summary, {})
            shown = ", ".join(f":py:obj:`~{full}.{name}`" for name in found[room] if described(room, name))
            lines += [f":doc:`{full} <{room or 'anechoic'}>`", f"   {summary}", "", f"   {shown}", ""]
            put(folder / f"{room or 'anechoic'}.rst", page(room, found[room]))
    put(folder / "index.rst", "\n".join(lines))
    (folder.parent / "project").mkdir(exist_ok=True)
    for name in ("CHANGELOG", "CONTRIBUTING"):
        text = f"```{{include}} ../../{name}.md\n:relative-docs: docs/\n```\n"
        put(folder.parent / "project" / f"{name.lower()}.md", text)
    full = {
        f"anechoic.{room}.{name}".replace("..", "."): name
        for room, names in found.items()
        for name in names
        if described(room, name) is not None
    }
    short = list(full.values())
    app.config.public_names = {*full, *(f"anechoic.{room}" for room in found if room)}
    app.config.public_short = {name: path for path, name in full.items() if short.count(name) == 1}


def put(path, text):
    """Written where it changed alone, so that the next build reads the rest from its cache."""
    if not path.exists() or path.read_text("utf-8") != text:
        path.write_text(text, "utf-8")


def setup(app):
    app.connect("builder-inited", write)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
