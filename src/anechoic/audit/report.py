"""Report of an audit: one finding for each test, the verdict, and what could have been seen."""

from __future__ import annotations

import json
import math
import textwrap
from dataclasses import asdict, dataclass


@dataclass(frozen=True)
class Finding:
    """One test of one claim.

    Attributes:
        name: "participation", "canary", "canary fit", "epsilon", "epsilon at large delta", "sampling" or
            "covariance".
        statistic: what was computed, in words.
        found: the lower bound, or the p-value.
        claimed: what the bound must not exceed, or the level that the p-value must reach.
        violated: whether the claim is refuted.
        confidence: 1 - probability that a mechanism which keeps its claim is found to violate it.
        power: probability of a violation found where the noise is 1/factor of the claimed; None if not known.
        note: point estimate, worst test, ….
    """

    name: str
    statistic: str
    found: float
    claimed: float
    violated: bool
    confidence: float
    power: float | None = None
    note: str = ""


@dataclass(frozen=True)
class AuditReport:
    """The outcome of an audit. It can refute a guarantee; it cannot prove one.

    Attributes:
        subject: what was audited, in one line.
        fingerprint: of the mechanism.
        findings: one for each test.
        confidence: 1 - probability that a mechanism which keeps all its claims is called violated.
        factor: the lack of noise for which powers are stated.
        delta: at which epsilon is bounded.
        canaries: number of them, put in and left out.
        canaries_needed: for the canary fit to find `factor` with 95 % power; None where not known.
        assumptions: what the numbers rest on.
    """

    subject: str
    fingerprint: str
    findings: tuple[Finding, ...]
    confidence: float
    factor: float
    delta: float
    canaries: tuple[int, int]
    canaries_needed: int | None
    assumptions: tuple[str, ...]

    @property
    def violated(self) -> bool:
        """Whether any claim is refuted."""
        return any(finding.violated for finding in self.findings)

    @property
    def verdict(self) -> str:
        """One sentence."""
        if self.violated:
            names = ", ".join(finding.name for finding in self.findings if finding.violated)
            return f"VIOLATED: the claim is refuted at {self.confidence:.0%} confidence by {names}."
        powers = {f.name: f.power for f in self.findings if f.power is not None}
        shown = ", ".join(f"{name} {min(power, 0.999):.3g}" for name, power in powers.items())
        return (
            f"no violation found, which is no proof. Probability with which the tests would have found noise"
            f" too small by a factor {self.factor:g}: {shown}."
        )

    def finding(self, name: str) -> Finding:
        """The finding of that name.

        Raises:
            ValueError: if there is none.
        """
        for finding in self.findings:
            if finding.name == name:
                return finding
        raise ValueError(f"no finding {name!r}: there are {', '.join(f.name for f in self.findings)}.")

    def to_json(self) -> str:
        """Everything as JSON; what is infinite is written as a string."""
        record = {**asdict(self), "violated": self.violated, "verdict": self.verdict}
        return json.dumps(_finite(record), indent=1, allow_nan=False)

    def __str__(self) -> str:
        lines = [f"audit of {self.subject}", f"mechanism {self.fingerprint[:16]}…", ""]
        head = ("test", "found", "claimed", "", "power", "what")
        rows = [head, *(_row(finding) for finding in self.findings)]
        widths = [max(len(row[i]) for row in rows) for i in range(5)]
        indent = " " * (sum(widths) + 10)
        for row in rows:
            start = "  ".join(cell.ljust(width) for cell, width in zip(row[:5], widths, strict=True))
            lines += textwrap.wrap(row[5], 130, initial_indent=start + "  ", subsequent_indent=indent)
        put_in, left_out = self.canaries
        lines += ["", f"canaries: {put_in} put in, {left_out} left out"]
        if self.canaries_needed is not None:
            lines.append(
                f"to find noise too small by a factor {self.factor:g} with 95 % power by the canary fit:"
                f" {self.canaries_needed} canaries"
            )
        lines += ["", *textwrap.wrap(self.verdict, 110), "", "assumes:"]
        for text in self.assumptions:
            lines.extend(textwrap.wrap(text, 110, initial_indent="- ", subsequent_indent="  "))
        return "\n".join(lines)


def _row(finding: Finding) -> tuple[str, ...]:
    power = "" if finding.power is None else f"{finding.power:.0%}"
    what = finding.statistic + (f"; {finding.note}" if finding.note else "")
    mark = "VIOLATED" if finding.violated else "ok"
    return finding.name, f"{finding.found:.4g}", f"{finding.claimed:.4g}", mark, power, what


def _finite(value: object) -> object:
    if isinstance(value, dict):
        return {key: _finite(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_finite(item) for item in value]
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    return value
