"""The formats of a statement: plain text, Markdown, one HTML page, and JSON."""

from __future__ import annotations

import json
import math
import re
import textwrap
from collections.abc import Iterable
from html import escape
from pathlib import Path
from typing import Any, Literal

from anechoic._validate import one_of
from anechoic.statement.attacker import attacker_of
from anechoic.statement.forms import OPEN, answers, as_nist_json, registry, sacro
from anechoic.statement.page import cell, definitions, fold, listed, page, section
from anechoic.statement.statement import Statement

Format = Literal["text", "markdown", "html", "json", "nist", "nist-json", "registry", "sacro"]
FORMATS: tuple[Format, ...] = ("text", "markdown", "html", "json", "nist", "nist-json", "registry", "sacro")
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
        format: "text", "markdown", "html" or "json"; or a form, see `statement.forms`: "nist" (Markdown),
            "nist-json", "registry" or "sacro" (JSON).
        out: a file to write it to, as UTF-8, besides returning it.
        proofs: folder or address of the proof pages, for the links of Markdown and HTML.

    Raises:
        ValueError: for another format.
        OSError: if the file cannot be written.
    """
    one_of("format", format, FORMATS)
    if format == "markdown":
        text = as_markdown(statement, proofs)
    elif format == "html":
        text = as_html(statement, proofs)
    elif format == "nist":
        text = as_nist(statement)
    elif format == "nist-json":
        text = as_nist_json(statement)
    elif format in ("registry", "sacro"):
        form = registry(statement) if format == "registry" else sacro(statement)
        text = json.dumps(_finite(form), indent=1, ensure_ascii=False, allow_nan=False)
    else:
        text = as_text(statement) if format == "text" else as_json(statement)
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
    (_, guarantee), *rest = [*statement.items, *statement.attack]
    folder = proofs.rstrip("/")
    said = (f"<b>{escape(each.who)}</b>: {escape(each.what)}" for each in statement.assumptions)
    links = (
        f'<a href="{escape(f"{folder}/{proof.page}")}">{escape(proof.title)}</a>'
        for proof in statement.proofs
    )
    parts = [
        "<h1>Privacy statement</h1>",
        f'<p class="guarantee">{escape(guarantee)}</p>',
        definitions(rest),
        section("Access to data", listed(said)),
        section("Observer", listed([escape(statement.observer)])),
        section("What a deployment must ensure", listed(map(escape, statement.duties))),
        section("Not covered", listed(map(escape, statement.not_covered))),
        section("Proofs", listed(links)),
        section("Identity", f"<p>Fingerprint: <code>{escape(statement.fingerprint)}</code></p>"),
        f'<p class="soft">Computed with {escape(_versions(statement))}.</p>',
    ]
    return page("Privacy statement", "\n".join(parts))


def as_cell(statement: Statement) -> str:
    """The statement in a notebook: the guarantee and its numbers, and what it assumes on a click."""
    (_, guarantee), *rest = statement.items
    said = definitions(statement.pairs[len(statement.items) :])
    numbers = definitions(rest)
    return cell(
        f"<p><b>{escape(guarantee)}</b></p>", numbers, fold("What it assumes, and why it holds", said)
    )


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


def as_nist(statement: Statement) -> str:
    """The answers to NIST SP 800-226 as Markdown, with what the operator must answer marked."""
    lines, layer = ["# Evaluation of a differential privacy guarantee, after NIST SP 800-226"], ""
    for each in answers(statement):
        if each["layer"] != layer:
            layer = each["layer"]
            lines += ["", f"## {layer}"]
        answer = f"**{OPEN}**" if each["answer"] is None else _escaped(each["answer"])
        lines += ["", f"**{each['question']}**", "", answer]
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
