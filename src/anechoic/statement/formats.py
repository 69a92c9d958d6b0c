"""The formats of a statement: plain text, Markdown, one HTML page, and JSON."""

from __future__ import annotations

import json
import math
import re
import textwrap
from collections.abc import Iterable
from importlib.util import find_spec
from itertools import chain
from pathlib import Path
from typing import Any, Literal

from anechoic._validate import one_of
from anechoic.statement.attacker import attacker_of
from anechoic.statement.page import cell, definitions, fold, paragraph, render_page
from anechoic.statement.statement import Statement
from anechoic.statement.theorem import PROOFS

Format = Literal["text", "markdown", "html", "json"]
FORMATS: tuple[Format, ...] = ("text", "markdown", "html", "json")
#: Of the keys in JSON, which are documented: they stay.
VERSION = 1
#: Of the lines that a reviewer signs, those of one line at most: of the others no word is left out.
SHORTENED = ("Noise", "Mechanism", "Accounting", "Fingerprint")


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
    linked = {"markdown": as_markdown, "html": as_html}.get(one_of("format", format, FORMATS))
    plain = as_json if format == "json" else as_text
    text = plain(statement) if linked is None else linked(statement, proofs)
    if out is not None:
        Path(out).write_text(text if text.endswith("\n") else f"{text}\n", encoding="utf-8")
    return text


def as_signed(statement: Statement, details: str = "; details: report()") -> str:
    """What a reviewer signs, as about twelve lines; … ends those `SHORTENED`, of which details have more."""
    *said, (last, fingerprint) = statement.signed
    items = (*said, (last, fingerprint + details))
    lines = (lay_out([item], 110, 15, 1 if item[0] in SHORTENED else None) for item in items)
    return "\n".join(chain.from_iterable(lines))


def as_text(statement: Statement) -> str:
    """The statement as plain text: what a reviewer signs, then the details."""
    *body, fingerprint = statement.pairs
    details = lay_out([*body, ("Software", _versions(statement)), fingerprint])
    return "\n".join([as_signed(statement, ""), "", "In detail", "", *details])


def lay_out(
    items: Iterable[tuple[str, str]], width: int = 100, indent: int = 18, most: int | None = None
) -> list[str]:
    """Lines of (heading, text) pairs, at most `most` of each, of at most `width` characters."""
    lines = []
    for heading, text in items:
        wrapped = textwrap.wrap(
            text, width - indent, break_on_hyphens=False, max_lines=most, placeholder=" …"
        )
        first, *rest = wrapped or [""]
        lines += [f"{heading + ':':<{indent}}{first}", *(" " * indent + line for line in rest)]
    return lines


def _versions(statement: Statement) -> str:
    return ", ".join(f"{name} {version}" for name, version in statement.software.items())


def as_html(statement: Statement, proofs: str) -> str:
    """The statement as a whole HTML document; links lead into `proofs`, a folder or an address."""
    shown = {"statement": statement, "software": _versions(statement), "folder": proofs.rstrip("/")}
    return render_page("statement.html", title="Privacy statement", **shown)


def as_cell(statement: Statement) -> str | None:
    """The statement in a notebook: what a reviewer signs, and the details folded; None without jinja2."""
    if find_spec("jinja2") is None:
        return None
    (_, guarantee), *rest = statement.signed
    details = fold("In detail", definitions(statement.pairs))
    return cell(paragraph(guarantee, "guarantee"), definitions(rest), details)


def as_markdown(statement: Statement, proofs: str) -> str:
    """As every common host renders it; links lead into `proofs`, a folder or an address."""
    (_, guarantee), *rest = statement.signed
    lines = ["# Privacy statement", "", f"**{_escaped(guarantee)}**", *_rows(rest)]
    lines += ["", "## In detail", *_rows([*statement.items, *statement.attack])]
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


def _rows(pairs: Iterable[tuple[str, str]]) -> list[str]:
    rows = (f"| {_escaped(heading)} | {_escaped(text)} |" for heading, text in pairs)
    return ["", "| | |", "|---|---|", *rows]


def _address(folder: str, page: str) -> str:
    address = f"{folder.rstrip('/')}/{page}"
    return f"<{address}>" if re.search(r"[\s()]", address) else address


def _escaped(text: str) -> str:
    """Text that Markdown leaves alone, on one line: units and promises are somebody's own words."""
    return re.sub(r"([\\`*_\[\]|<>~#&$])", r"\\\1", " ".join(text.split()))


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
