"""Theorem that a number relies on, and the page that proves it."""

from __future__ import annotations

from dataclasses import dataclass

#: Address of the repository, and nowhere else; "" until somebody owns one: then pages are in its source.
HOME = ""
PROOFS = f"{HOME}/blob/main/docs/proofs" if HOME else "docs/proofs"


@dataclass(frozen=True)
class Theorem:
    """A theorem that a number relies on.

    Attributes:
        title: what it gives, and its source.
        page: file in docs/proofs, with the section where the page has several; or an address of your own.
    """

    title: str
    page: str
