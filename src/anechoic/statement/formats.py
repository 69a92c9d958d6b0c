"""The formats of a statement: plain text, Markdown, one HTML page, and JSON."""

from __future__ import annotations

import json
import math
import re
import textwrap
from collections.abc import Iterable
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Literal

from anechoic._validate import one_of
from anechoic.statement.attacker import attacker_of
from anechoic.statement.page import cell, definitions, fold, paragraph, render_page
from anechoic.statement.statement import Statement

Format = Literal["text", "markdown", "html", "json"]
FORMATS: tuple[Format, ...] = ("text", "markdown", "html", "json")
PROOFS = "docs/proofs"
#: Of the keys in JSON, which docs/statement.md documents: they stay.
VERSION = 1
_INDENT = 18


def render(
    statement: Statement, format: Format = "text", *, out: str | Path | None = None, proofs: str = PROOFS
) -> str:
    """The statement in one of the `FORMATS`.

    Args:
        statement: what `statement_of` returned.
        format: "text", "markdown", "html" or "json".
        out: a file to write it to, as UTF-8, besides returning it.
        proofs: folder or address of the proof pages, for the links of Markdown and HTML.

    Raises:
        ValueError: for another format.
        AnechoicError: for HTML without jinja2.
        OSError: if the file cannot be written.
    """
    match one_of("format", format, FORMATS):
        case "markdown":
            text = as_markdown(statement, proofs)
        case "html":
            text = as_html(statement, proofs)
        case "json":
            text = as_json(statement)
        case _:
            text = as_text(statement)
    if out is not None:
        Path(out).write_text(text if text.endswith("\n") else f"{text}\n", encoding="utf-8")
    return text


# -- plain text ----------------------------------------------------------------------------------


def as_text(statement: Statement, width: int = 100) -> str:
    """The statement as plain text of lines of at most `width` characters, save for long words."""
    *body, fingerprint = statement.pairs
    return lay_out([*body, ("Software", _versions(statement)), fingerprint], width)


def lay_out(items: Iterable[tuple[str, str]], width: int = 100) -> str:
    """(heading, text) pairs as plain text."""
    lines = []
    for heading, text in items:
        first, *rest = textwrap.wrap(text, width - _INDENT, break_on_hyphens=False) or [""]
        lines += [f"{heading + ':':<{_INDENT}}{first}", *(" " * _INDENT + line for line in rest)]
    return "\n".join(lines)


def _versions(statement: Statement) -> str:
    return ", ".join(f"{name} {version}" for name, version in statement.software.items())


# -- HTML ----------------------------------------------------------------------------------------


def as_html(statement: Statement, proofs: str) -> str:
    """The statement as a whole HTML document; links lead into `proofs`, a folder or an address."""
    (_, guarantee), *numbers = [*statement.items, *statement.attack]
    return render_page(
        "statement.html",
        title="Privacy statement",
        statement=statement,
        guarantee=guarantee,
        numbers=numbers,
        software=_versions(statement),
        folder=proofs.rstrip("/"),
    )


def as_cell(statement: Statement) -> str | None:
    """The statement in a notebook: the guarantee, its numbers, and what it assumes; None without jinja2."""
    if find_spec("jinja2") is None:
        return None
    (_, guarantee), *rest = statement.items
    said = definitions(statement.pairs[len(statement.items) :])
    whole = fold("What it assumes, and why it holds", said)
    return cell(paragraph(guarantee, "guarantee"), definitions(rest), whole)


# -- Markdown ------------------------------------------------------------------------------------


def as_markdown(statement: Statement, proofs: str) -> str:
    """As every common host renders it; links lead into `proofs`, a folder or an address."""
    (_, guarantee), *rest = [*statement.items, *statement.attack]
    lines = ["# Privacy statement", "", f"**{_escaped(guarantee)}**", "", "| | |", "|---|---|"]
    lines += [f"| {_escaped(heading)} | {_escaped(text)} |" for heading, text in rest]
    links = (f"[{_escaped(proof.title)}]({_address(proofs, proof.page)})" for proof in statement.proofs)
    for heading, entries in (
        ("Access to data", (f"**{a.who}**: {_escaped(a.what)}" for a in statement.assumptions)),
        ("Observer", [_escaped(statement.observer)]),
        ("What a deployment must ensure", map(_escaped, statement.duties)),
        ("Not covered", map(_escaped, statement.not_covered)),
        ("Proofs", links),
        ("Software", (f"{name} {version}" for name, version in statement.software.items())),
    ):
        lines += ["", f"## {heading}", "", *(f"* {entry}" for entry in entries)]
    return "\n".join([*lines, "", f"Fingerprint: `{statement.fingerprint}`", ""])


def _address(folder: str, page: str) -> str:
    address = f"{folder.rstrip('/')}/{page}"
    return f"<{address}>" if re.search(r"[\s()]", address) else address


def _escaped(text: str) -> str:
    """Text that Markdown leaves alone, on one line: units and promises are somebody's own words."""
    return re.sub(r"([\\`*_\[\]|<>~#&$])", r"\\\1", " ".join(text.split()))


# -- JSON ----------------------------------------------------------------------------------------


def as_json(statement: Statement) -> str:
    """The statement as JSON; numbers in full, null where a number is not finite or does not exist."""
    record = {
        "statement": VERSION,
        **statement.record,
        "attacker": None if (attacker := attacker_of(statement.record)) is None else attacker.record(),
        "assumptions": [{"who": each.who, "what": each.what} for each in statement.assumptions],
        "observer": statement.observer,
        "deployment": list(statement.duties),
        "not_covered": list(statement.not_covered),
        "proofs": [{"title": proof.title, "page": proof.page} for proof in statement.proofs],
        "software": statement.software,
        "fingerprint": statement.fingerprint,
    }
    return json.dumps(_finite(record), indent=1, ensure_ascii=False, allow_nan=False)


def _finite(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _finite(each) for key, each in value.items()}
    if isinstance(value, list):
        return [_finite(each) for each in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
