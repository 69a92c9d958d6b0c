"""A statement as plain text."""

from __future__ import annotations

import textwrap
from collections.abc import Iterable

from anechoic.statement.statement import Statement

_INDENT = 18


def as_text(statement: Statement, width: int = 100) -> str:
    """The statement as plain text of lines of at most `width` characters, save for long words."""
    versions = ", ".join(f"{name} {version}" for name, version in statement.software.items())
    *body, fingerprint = statement.pairs
    return lay_out([*body, ("Software", versions), fingerprint], width)


def lay_out(items: Iterable[tuple[str, str]], width: int = 100) -> str:
    """(heading, text) pairs as plain text."""
    lines = []
    for heading, text in items:
        indent = " " * _INDENT
        wrapped = textwrap.wrap(text, width - _INDENT, break_on_hyphens=False) or [""]
        lines.append(f"{heading + ':':<{_INDENT}}{wrapped[0]}")
        lines.extend(indent + line for line in wrapped[1:])
    return "\n".join(lines)
