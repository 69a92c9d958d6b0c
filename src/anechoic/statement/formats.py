"""The formats of a statement: one function for all."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from anechoic._validate import one_of
from anechoic.statement.html import as_html
from anechoic.statement.markdown import as_markdown
from anechoic.statement.record import as_json
from anechoic.statement.statement import Statement
from anechoic.statement.text import as_text

Format = Literal["text", "markdown", "html", "json"]
FORMATS: tuple[Format, ...] = ("text", "markdown", "html", "json")
PROOFS = "docs/proofs"


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
        OSError: if the file cannot be written.
    """
    one_of("format", format, FORMATS)
    if format == "markdown":
        text = as_markdown(statement, proofs)
    elif format == "html":
        text = as_html(statement, proofs)
    else:
        text = as_text(statement) if format == "text" else as_json(statement)
    if out is not None:
        Path(out).write_text(text if text.endswith("\n") else f"{text}\n", encoding="utf-8")
    return text
