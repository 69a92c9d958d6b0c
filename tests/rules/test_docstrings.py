"""Every public name says what it takes, what comes back and what it refuses."""

import ast
import enum
import inspect
import re
from importlib import import_module
from textwrap import dedent

import pytest
from numpy.typing import ArrayLike

from anechoic import _validate
from tests.rules.site import WHOLE, called
from tests.test_public_names import PUBLIC, needed_by

CHECKS = {name for name, what in vars(_validate).items() if inspect.isfunction(what)}
#: First words of a summary that says what is done, and not what comes back.
DOES = re.compile(
    r"(Calibrate|Change|Compare|Compute|Count|Draw|Find|Make|Plan|Read|Register|Search|Train|Try|Write)s?\b"
)
#: First words of what functions do, and the methods of the classes that people use.
VERBS = re.compile(
    r"(Add|Audit|Bound|Cancel|Choose|Clip|Close|Compare|Compute|Copy|Cost|Count|Decorate|Derive|Draw|End|Form|Give"
    r"|Grant|Load|Look|Make|Name|Plot|Raise|Read|Refuse|Register|Release|Report|Return|Save|Say|State|Take"
    r"|Tell|Test|Train|Write)\b"
)
#: Arrays, of which a shape or a length must be said.
ARRAY = re.compile(r"\b(Array|ArrayLike|NDArray|ndarray)\b")
SHAPED = re.compile(
    r"\(\w+(, \w*)*\)|shape|one (a|for|of|per)|each|every|matrix|vector|row|coefficients|numbers"
)
#: Who makes them is a method that says what it takes, or it is a function of functools.
MADE_ELSEWHERE = {("runs", "Journal"), ("flower", "clipped_update_mod")}


def refuses(function):
    """Whether its own lines raise, or check an argument."""
    return any(
        isinstance(node, ast.Raise)
        or (isinstance(node, ast.Call) and ast.unparse(node.func).rpartition(".")[2] in CHECKS)
        for node in ast.walk(ast.parse(dedent(inspect.getsource(function))))
    )


def makers(thing):
    """The functions in which it looks at its arguments."""
    if not inspect.isclass(thing):
        return [thing]
    own = (vars(thing).get(name) for name in ("__init__", "__post_init__"))
    return [one for one in own if inspect.isfunction(one) and one.__code__.co_filename != "<string>"]


def parameters(thing):
    """Those that a caller gives; of a class as its own __init__ has them."""
    maker = vars(thing).get("__init__", thing) if inspect.isclass(thing) else thing
    return {name: one for name, one in inspect.signature(maker).parameters.items() if name != "self"}


def faults(thing):
    """What its docstring does not say."""
    text = inspect.cleandoc(thing.__doc__ or "")
    summary = text.split("\n\n")[0]
    if not summary.endswith((".", ":")):
        yield "the first paragraph is no sentence"
    if inspect.isclass(thing) and issubclass(thing, (BaseException, enum.Enum)):
        return
    for name, parameter in parameters(thing).items():
        said = re.search(rf"\b{re.escape(name)}\b(.*?)(?=\n\s*\w+(, \w+)*: |\n\n|\Z)", text, re.DOTALL)
        if not said:
            yield f"{name} is not explained"
        elif ARRAY.search(str(parameter.annotation)) and not SHAPED.search(text):
            yield f"{name} is an array of no known shape"
    comes_back = not inspect.isclass(thing) and inspect.signature(thing).return_annotation not in (
        None,
        "None",
    )
    if comes_back and DOES.match(summary) and not re.search(r"^(Returns|Yields):", text, re.MULTILINE):
        yield "what comes back is not said"
    if any(map(refuses, makers(thing))) and not re.search(r"^Raises:", text, re.MULTILINE):
        yield "what it refuses is not said"


def test_what_a_function_does_begins_with_a_verb():
    rooms = [import_module(f"anechoic.{room}".rstrip(".")) for room in PUBLIC if not list(needed_by(room))]
    public = [getattr(room, name) for room in rooms for name in room.__all__]
    methods = [inspect.unwrap(getattr(thing, name)) for thing in WHOLE.values() for name in called(thing)]
    functions = [one for one in [*public, *methods] if inspect.isfunction(one) or inspect.ismethod(one)]
    assert len(functions) > 100
    said = {one.__qualname__: inspect.getdoc(one) for one in functions}
    assert {name: text for name, text in said.items() if not VERBS.match(text)} == {}


@pytest.mark.parametrize("room", sorted(PUBLIC))
def test_public_names_say_what_they_are(room):
    for package in needed_by(room):
        pytest.importorskip(package, reason="an extra installs it")
    module = import_module(f"anechoic.{room}".rstrip("."))
    things = {
        name: getattr(module, name) for name in PUBLIC[room].split() if (room, name) not in MADE_ELSEWHERE
    }
    found = {name: list(faults(thing)) for name, thing in things.items() if callable(thing)}
    assert not {name: said for name, said in found.items() if said}


def test_a_docstring_that_says_too_little_is_found():
    def silent(rate, values: "ArrayLike") -> "ArrayLike":
        if rate < 0:
            raise ValueError(rate)
        return values

    silent.__doc__ = "Compute something of values."
    assert list(faults(silent)) == [
        "rate is not explained",
        "values is an array of no known shape",
        "what comes back is not said",
        "what it refuses is not said",
    ]
    silent.__doc__ = "Values"
    assert "the first paragraph is no sentence" in list(faults(silent))
