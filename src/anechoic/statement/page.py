"""HTML by jinja2: pages that hold everything they show, and the parts that they are made of.

Templates lie in `anechoic/templates`. Plain texts are escaped, whoever wrote them; what a parameter calls
HTML is not.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from anechoic.errors import AnechoicError

if TYPE_CHECKING:
    from jinja2 import Environment

_FOLDER = Path(__file__).parents[1] / "templates"


@cache
def _templates() -> Environment:
    try:
        from jinja2 import Environment, FileSystemLoader
    except ImportError as error:
        raise AnechoicError(
            "pages need jinja2, which is not installed: pip install 'anechoic[plot]'"
        ) from error
    return Environment(loader=FileSystemLoader(_FOLDER), autoescape=True)


def render_page(template: str, **values: Any) -> str:
    """Return a whole HTML document.

    Raises:
        AnechoicError: without jinja2.
    """
    return _templates().get_template(template).render(**values)


def style() -> str:
    """Return the style of pages, light and dark, as CSS."""
    return (_FOLDER / "style.css").read_text(encoding="utf-8")


def _part(name: str, *values: Any, **options: Any) -> str:
    return str(getattr(_templates().get_template("parts.html").module, name)(*values, **options))


def cell(*parts: str) -> str:
    """Return what a notebook shows of an object; the parts must be HTML already."""
    return _part("cell", *parts)


def section(heading: str, *parts: str) -> str:
    """Return a heading with what belongs to it; the parts must be HTML already."""
    return _part("section", heading, *parts)


def paragraph(text: str, kind: str = "") -> str:
    """Return a paragraph of plain text."""
    return _part("paragraph", text, kind)


def figure(picture: str, caption: str) -> str:
    """Return a picture (HTML) and its caption (plain text)."""
    return _part("figure", picture, caption)


def table(head: Sequence[str], rows: Iterable[Sequence[str]], *, best: Iterable[tuple[int, int]] = ()) -> str:
    """Return a table of plain texts; `best` are the (row, column) that stand out."""
    return _part("table", head, rows, best=frozenset(best))


def definitions(pairs: Iterable[tuple[str, str]]) -> str:
    """Return headings and their plain texts."""
    return _part("definitions", pairs)


def fold(summary: str, content: str, *, opened: bool = False) -> str:
    """Return content (HTML) that opens on a click."""
    return _part("fold", summary, content, opened)
