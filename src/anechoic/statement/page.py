"""HTML by jinja2: pages that hold everything they show, and the parts that they are made of.

Templates lie in `anechoic/templates`. Plain texts are escaped, whoever wrote them; what a parameter calls
HTML is not.
"""

from __future__ import annotations

from functools import cache, partial
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
        raise AnechoicError("pages need jinja2; it is missing: pip install 'anechoic[plot]'") from error
    return Environment(loader=FileSystemLoader(_FOLDER), autoescape=True)


def render_page(template: str, **values: Any) -> str:
    """Return a whole HTML document; without jinja2 it is an AnechoicError."""
    return _templates().get_template(template).render(**values)


def style() -> str:
    """Return the style of pages, light and dark, as CSS."""
    return (_FOLDER / "style.css").read_text(encoding="utf-8")


def _part(name: str, *values: Any, **options: Any) -> str:
    """Fill in the macro of this name in parts.html, which says what it takes."""
    return str(getattr(_templates().get_template("parts.html").module, name)(*values, **options))


_NAMES = ("cell", "definitions", "figure", "fold", "paragraph", "section", "table")
cell, definitions, figure, fold, paragraph, section, table = (partial(_part, name) for name in _NAMES)
