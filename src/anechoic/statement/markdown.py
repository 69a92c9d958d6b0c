"""A statement as Markdown: headings, one table, lists and links, as every common host renders them."""

from __future__ import annotations

import re
from collections.abc import Iterable

from anechoic.statement.statement import Statement


def as_markdown(statement: Statement, proofs: str) -> str:
    """The statement as Markdown; links lead into `proofs`, a folder or an address."""
    (_, guarantee), *rest = statement.items
    lines = ["# Privacy statement", "", f"**{_escaped(guarantee)}**", "", "| | |", "|---|---|"]
    lines += [f"| {_escaped(heading)} | {_escaped(text)} |" for heading, text in rest]
    lines += _section("Access to data", (f"**{a.who}**: {_escaped(a.what)}" for a in statement.assumptions))
    lines += _section("Observer", [_escaped(dict(statement.pairs)["Observer"])])
    lines += _section("What a deployment must ensure", map(_escaped, statement.duties))
    lines += _section("Not covered", map(_escaped, statement.not_covered))
    lines += _section(
        "Proofs", (f"[{_escaped(proof.title)}]({_address(proofs, proof.page)})" for proof in statement.proofs)
    )
    lines += _section("Software", (f"{name} {version}" for name, version in statement.software.items()))
    lines += ["", f"Fingerprint: `{statement.fingerprint}`", ""]
    return "\n".join(lines)


def _section(heading: str, entries: Iterable[str]) -> list[str]:
    return ["", f"## {heading}", "", *(f"* {entry}" for entry in entries)]


def _address(folder: str, page: str) -> str:
    address = f"{folder.rstrip('/')}/{page}"
    return f"<{address}>" if re.search(r"[\s()]", address) else address


def _escaped(text: str) -> str:
    """Text that Markdown leaves alone, on one line: units and promises are somebody's own words."""
    return re.sub(r"([\\`*_\[\]|<>~#&$])", r"\\\1", " ".join(text.split()))
