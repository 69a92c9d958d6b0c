"""Pages that are written before the site is read: the reference, from the `__all__` of each room, and what
stands at the top of the repository.
"""

import ast
import inspect
import typing
from importlib import import_module
from pathlib import Path

from docstrings import inline, under
from sphinx.pycode import ModuleAnalyzer

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
#: Rooms for those who extend the library: base classes say what comes back.
FOR_AUTHORS = {"extend", "runs", "testing", "torch.sources"}


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


def is_ours(thing):
    return (getattr(thing, "__module__", None) or "").startswith("anechoic.")


def hints(thing):
    try:
        return typing.get_type_hints(thing)
    except (NameError, TypeError):  # a name for type checkers alone, or nothing that has types
        return {}


def classes(kind):
    """Classes of ours in a type."""
    if isinstance(kind, type) and is_ours(kind) and not kind.__name__.startswith("_"):
        yield kind
    for part in typing.get_args(kind):
        yield from classes(part)


def members(thing):
    """Name -> function or else value, of what a class shows, of its own or from a base class of ours."""
    bases = [base for base in reversed(thing.__mro__) if is_ours(base)]
    return {name: under(one) for base in bases for name, one in vars(base).items() if name[0] != "_"}


def add_returned(thing, listed, fields=True):
    """Add to `listed` the classes that come back from a name, and those that these hold."""
    kinds = [hints(thing).get("return")]
    if isinstance(thing, type):
        kinds = [hints(one).get("return") for one in members(thing).values()]
        kinds += [kind for name, kind in hints(thing).items() if fields and name[0] != "_"]
    for one in (one for kind in kinds for one in classes(kind)):
        if one not in listed:
            listed.append(one)
            add_returned(one, listed)


def contents(found):
    """Room -> (public things, classes that they return and that have no public name), for its page."""
    public = {
        room: [thing for name in names if (thing := described(room, name)) is not None]
        for room, names in found.items()
    }
    listed = [thing for things in public.values() for thing in things]
    pages = {}
    order = [room for rooms_ in GROUPS.values() for room in rooms_] + [*public]
    for room in sorted(public, key=order.index):
        before = len(listed)
        for thing in [] if room in FOR_AUTHORS else public[room]:
            add_returned(thing, listed, fields=False)
        pages[room] = (public[room], listed[before:])
    return pages


def headline(thing):
    """The first paragraph of a docstring, which is a sentence."""
    return " ".join((inspect.getdoc(thing) or "").split("\n\n")[0].split())


def names_of(entries):
    """The table at the top of a page: a name, and what it is."""
    lines = [".. list-table::", "   :class: names", "   :widths: auto", ""]
    for path, thing in entries.items():
        lines += [f"   * - :py:obj:`~{path}`", f"     - {inline(headline(thing), {})}"]
    return [*lines, ""]


def entry(path, thing, listed):
    """Lines for autodoc. Members of a base class that has an entry itself are not said again."""
    if not isinstance(thing, type):
        return [f".. autofunction:: {path}", ""]
    lines = [f".. autoclass:: {path}"]
    elsewhere = [base for base in thing.__mro__[1:] if base in listed or not is_ours(base)]
    lines += [f"   :inherited-members: {', '.join(base.__name__ for base in elsewhere)}", ""]
    if bases := [base for base in elsewhere if base in listed and members(base)]:
        said = ", ".join(f":py:obj:`~{listed[base]}`" for base in bases)
        lines += [f"   It has the members of {said} too.", ""]
    return lines


def page(full, public, returned, listed):
    """The page of a room, in reStructuredText, which autodoc writes too."""
    entries, more = ({listed[thing]: thing for thing in things} for things in (public, returned))
    lines = [full, "=" * len(full), "", f".. automodule:: {full}", "   :no-members:", ""]
    lines += names_of(entries | more)
    for path, thing in entries.items():
        lines += entry(path, thing, listed)
    if more:
        lines += ["What comes back", "---------------", "", "Made by the functions and methods above.", ""]
    for path, thing in more.items():
        lines += entry(path, thing, listed)
    return "\n".join(lines)


def one_signature(thing):
    """Where a decorator has spelled out the arguments of a method, its overloads are not shown instead."""
    for one in members(thing).values():
        if inspect.isfunction(one) and "__signature__" in vars(inspect.unwrap(one)):
            analyzer = ModuleAnalyzer.for_module(one.__module__)
            analyzer.analyze()
            analyzer.overloads.pop(one.__qualname__, None)


def paths(found, pages):
    """Thing -> its path, by which it is written down, and linked."""
    listed = {}
    for room, (_, returned) in pages.items():
        listed |= {
            described(room, name): f"anechoic.{room}.{name}".replace("..", ".") for name in found[room]
        }
        listed |= {thing: f"{thing.__module__}.{thing.__qualname__}" for thing in returned}
    return {thing: path for thing, path in listed.items() if thing is not None}


def index(groups, found):
    """The page of all rooms."""
    lines = [
        "API reference",
        "=============",
        "",
        "Every public name, by room. All other names may change.",
        "",
    ]
    for title, rooms_ in groups.items():
        lines += [title, "-" * len(title), "", ".. toctree::", "   :hidden:", ""]
        lines += [f"   {room or 'anechoic'} <{room or 'anechoic'}>" for room in rooms_] + [""]
        for room in rooms_:
            full = f"anechoic.{room}".rstrip(".")
            shown = ", ".join(f":py:obj:`~{full}.{name}`" for name in found[room] if described(room, name))
            said = inline(headline(import_module(full)), {})
            lines += [f":doc:`{full} <{room or 'anechoic'}>`", f"   {said}", "", f"   {shown}", ""]
    return "\n".join(lines)


def write(app):
    folder = Path(app.srcdir) / "api"
    source = Path(app.srcdir).parent / "src" / "anechoic"
    found = {room: names for room, names in rooms(source).items() if can_be_had(room)}
    groups = {title: [room for room in rooms_ if room in found] for title, rooms_ in GROUPS.items()}
    if rest := [room for room in found if not any(room in group for group in groups.values())]:
        groups["More"] = rest
    pages = contents(found)
    listed = paths(found, pages)
    for thing in listed:
        if isinstance(thing, type):
            one_signature(thing)
    folder.mkdir(exist_ok=True)
    put(folder / "index.rst", index(groups, found))
    for room, things in pages.items():
        put(folder / f"{room or 'anechoic'}.rst", page(f"anechoic.{room}".rstrip("."), *things, listed))
    (folder.parent / "project").mkdir(exist_ok=True)
    for name in ("CHANGELOG", "CONTRIBUTING"):
        text = f"```{{include}} ../../{name}.md\n:relative-docs: docs/\n```\n"
        put(folder.parent / "project" / f"{name.lower()}.md", text)
    short = {}
    for thing, path in listed.items():
        name = path.rpartition(".")[2]
        short.setdefault(name, []).append(path)
        for member in members(thing) if isinstance(thing, type) else ():
            short.setdefault(f"{name}.{member}", []).append(f"{path}.{member}")
    app.config.public_names = {*listed.values(), *(f"anechoic.{room}" for room in found if room)}
    app.config.public_short = {name: paths[0] for name, paths in short.items() if len(paths) == 1}


def put(path, text):
    """Written where it changed alone, so that the next build reads the rest from its cache."""
    if not path.exists() or path.read_text("utf-8") != text:
        path.write_text(text, "utf-8")


def setup(app):
    app.connect("builder-inited", write)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
