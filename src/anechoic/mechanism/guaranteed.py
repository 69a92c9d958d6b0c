"""What all records of a guarantee have in common: a mechanism, one without a last step, a composition."""

from __future__ import annotations

import hashlib
import json
from abc import ABC, abstractmethod
from functools import cached_property
from pathlib import Path
from typing import Any

from anechoic.statement.formats import Format, render
from anechoic.statement.statement import statement_of

REMEDY = "Do not rely on it: take the file that to_json() wrote."


class Guaranteed(ABC):
    """Releases that are mu-GDP together, with a statement."""

    @abstractmethod
    def gdp(self) -> float:
        """mu such that all releases are mu-GDP. Does not use amplification, also where `epsilon` does."""

    def rho(self) -> float:
        """rho = mu^2 / 2 such that all releases are rho-zCDP; like `gdp`, without amplification."""
        return self.gdp() ** 2 / 2

    def report(
        self, format: Format = "text", *, out: str | Path | None = None, proofs: str = "docs/proofs"
    ) -> str:
        """The privacy statement, for a reviewer: see `statement.formats.render`."""
        return render(statement_of(self), format, out=out, proofs=proofs)

    def __str__(self) -> str:
        return self.report()


class Recorded(Guaranteed):
    """One that can be written down without loss."""

    @abstractmethod
    def _fields(self) -> dict[str, Any]:
        """Every field as plain data."""

    @cached_property
    def fingerprint(self) -> str:
        """SHA-256 over every field, as 64 hexadecimal digits. Holds no secret.

        Raises:
            UnsupportedError: for a strategy from a function, which has no written form.
        """
        canonical = json.dumps(self._fields(), sort_keys=True, separators=(",", ":"), allow_nan=False)
        return hashlib.sha256(canonical.encode()).hexdigest()

    def written(self, stated: dict[str, Any]) -> str:
        """The record as JSON, with what it states, so that a reader can check it."""
        record = {**self._fields(), "states": stated, "fingerprint": self.fingerprint}
        return json.dumps(record, indent=1, allow_nan=False)
