"""Base of the records of a guarantee: mechanisms, endless mechanisms, compositions."""

from __future__ import annotations

import hashlib
import json
import math
from abc import ABC, abstractmethod
from collections.abc import Mapping
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Self

from anechoic._serialize import text_of
from anechoic._validate import fraction, positive_float
from anechoic.accounting.accountant import Accountant, adjacency_factor
from anechoic.accounting.gaussian import gaussian_event
from anechoic.errors import MismatchError
from anechoic.statement.formats import Format, as_cell, as_signed, render
from anechoic.statement.statement import statement_of
from anechoic.statement.theorem import PROOFS

if TYPE_CHECKING:
    from dp_accounting.dp_event import DpEvent

REMEDY = "Do not rely on it: take the file that to_json() wrote."
FORMAT = 1


class HasGuarantee(ABC):
    """Releases that are mu-GDP together, with a statement."""

    @abstractmethod
    def epsilon(self, delta: float | None = None) -> float:
        """An epsilon such that all releases are (epsilon, delta)-DP, rounded up; None for the own delta."""

    @abstractmethod
    def gdp(self) -> float:
        """mu such that all releases are mu-GDP. Does not use amplification, also where `epsilon` does."""

    def rho(self) -> float:
        """Return rho = mu^2 / 2 such that all releases are rho-zCDP; like `gdp`, without amplification."""
        return self.gdp() ** 2 / 2

    def report(
        self,
        format: Format = "text",
        *,
        data: str = "",
        model: str = "",
        out: str | Path | None = None,
        proofs: str = PROOFS,
    ) -> str:
        """Return the whole privacy statement: the lines that `print` shows, and the details; see `render`.

        `data` and `model` say what was trained on what, in your words. Else their lines are to be filled in.
        """
        said = statement_of(self).about(data=data, model=model)
        return render(said, format, out=out, proofs=proofs)

    def __str__(self) -> str:
        return as_signed(statement_of(self))

    def _repr_html_(self) -> str | None:
        return as_cell(statement_of(self))


class SavedGuarantee(HasGuarantee):
    """One that can be written down without loss, with what it states, and read back."""

    #: What holds the number of the format in files.
    versioned: ClassVar[str]

    def _check_numbers(self) -> None:
        """Bring noise_std, clip_norm and delta to floats; refuse those out of range, and a unit of no name.

        Raises:
            ValueError: naming the argument.
        """
        given = vars(self)
        found = {name: positive_float(name, given[name]) for name in ("noise_std", "clip_norm")}
        found["delta"] = fraction("delta", given["delta"])
        if not given["unit"] or not isinstance(given["unit"], str):
            raise ValueError(f"unit={given['unit']!r} must name what is protected, such as 'example'.")
        for name, value in found.items():
            object.__setattr__(self, name, value)

    def dp_event(self) -> DpEvent:
        """Return all releases as an event of `dp_accounting`, to be composed with others.

        It holds no adjacency: read it by `epsilon_of(event, delta, adjacency=self.adjacency)`. Batches
        without replacement `dp_accounting` reads by `RdpAccountant` under REPLACE_ONE alone.

        Raises:
            UnsupportedError: for sampling that amplifies and has none: balls in bins, allocation, min-sep.
        """
        given: Any = self
        accountant: Accountant | None = given.accountant
        if accountant is not None and accountant.hides:
            return accountant.dp_event(given.noise_std)
        return gaussian_event(adjacency_factor(given.adjacency) / self.gdp())

    def __hash__(self) -> int:
        return hash(self.fingerprint)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, SavedGuarantee) and self.fingerprint == other.fingerprint

    @abstractmethod
    def _fields(self) -> dict[str, Any]:
        """Every field as plain data, and the format."""

    @classmethod
    @abstractmethod
    def _from_fields(cls, record: dict[str, Any]) -> Self:
        """What `_fields` describes."""

    @abstractmethod
    def _claims(self) -> dict[str, Any]:
        """What a file states, so that a reader can check it."""

    def _recomputed_claims(self, stated: Mapping[str, Any]) -> dict[str, float]:
        """The numbers among those, computed again; what only sampling can show is held against samples."""
        return {name: value for name, value in self._claims().items() if isinstance(value, float)}

    @cached_property
    def fingerprint(self) -> str:
        """SHA-256 over every field, as 64 hexadecimal digits. Holds no secret."""
        canonical = json.dumps(self._fields(), sort_keys=True, separators=(",", ":"), allow_nan=False)
        return hashlib.sha256(canonical.encode()).hexdigest()

    def to_json(self) -> str:
        """Return the record as JSON, without loss, with what it states."""
        record = {**self._fields(), "states": self._claims(), "fingerprint": self.fingerprint}
        return json.dumps(record, indent=1, allow_nan=False)

    @classmethod
    def from_json(cls, text: str | Path) -> Self:
        """Read a record back, from its text or from a file; sensitivity and epsilon are computed again.

        An epsilon that was verified by Monte Carlo is held against a few samples only; `epsilon` of the
        mechanism that is returned draws all of them again.

        Raises:
            FileNotFoundError: for the path of a file that is not there.
            MismatchError: if the file is damaged, was edited, or states another guarantee than this
                version of the library computes.
        """
        try:
            record = json.loads(text_of(text))
            if (version := record.pop(cls.versioned)) != FORMAT:
                raise MismatchError(f"format={version!r}: this version reads {FORMAT}. {REMEDY}")
            stated, fingerprint = record.pop("states"), record.pop("fingerprint")
            mechanism = cls._from_fields(record)
            numbers = mechanism._recomputed_claims(stated)
            given = {name: float(stated[name]) for name in numbers}
        except MismatchError:
            raise
        except (KeyError, ValueError, TypeError, AttributeError) as error:
            fault = f"it has no {error}" if isinstance(error, KeyError) else str(error).rstrip(".")
            raise MismatchError(
                f"this is not a mechanism file, or it is damaged: {fault}. {REMEDY}"
            ) from error
        if fingerprint != mechanism.fingerprint:
            raise MismatchError(
                f"fingerprint={str(fingerprint)[:12]}… but the fields give {mechanism.fingerprint[:12]}…:"
                f" the file was edited after it was written. {REMEDY}"
            )
        for name, value in numbers.items():
            if not math.isclose(given[name], value, rel_tol=1e-6):
                raise MismatchError(f"the file states {name}={given[name]}, but it is {value}. {REMEDY}")
        return mechanism
