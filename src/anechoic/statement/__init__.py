"""The privacy statement: what a mechanism guarantees, under which assumptions, and why.

    print(mech.report())                            # plain text
    mech.report("markdown", out="statement.md")     # also "html" and "json"

`items` gathers what is said, `proofs` knows the page of docs/proofs behind each number, and one file lays it
out in each format.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Literal

from anechoic._validate import one_of
from anechoic.statement.html import as_html
from anechoic.statement.items import Assumption, Statement, statement_of, statement_of_endless
from anechoic.statement.markdown import as_markdown
from anechoic.statement.proofs import Proof, sensitivity_proof
from anechoic.statement.record import as_json
from anechoic.statement.rounding import round_up
from anechoic.statement.text import as_text, lay_out

if TYPE_CHECKING:
    from anechoic.mechanism import Mechanism

__all__ = [
    "FORMATS",
    "Assumption",
    "Format",
    "Proof",
    "Statement",
    "lay_out",
    "render",
    "round_up",
    "sensitivity_proof",
    "statement_items",
    "statement_of",
    "statement_of_endless",
]

Format = Literal["text", "markdown", "html", "json"]
FORMATS: tuple[Format, ...] = ("text", "markdown", "html", "json")
PROOFS = "docs/proofs"


def render(
    statement: Statement, format: Format = "text", *, out: str | Path | None = None, proofs: str = PROOFS
) -> str:
    """The statement in one of the `FORMATS`.

    Args:
        statement: of `statement_of` or `statement_of_endless`.
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


def statement_items(mechanism: Mechanism) -> list[tuple[str, str]]:
    """The statement as (heading, text) pairs, without the software, in the order a reviewer reads."""
    return statement_of(mechanism).pairs
