"""The privacy statement: what a Mechanism guarantees, under which assumptions, in words."""

from __future__ import annotations

import math
import textwrap
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from anechoic.mechanism import Mechanism

_ADJACENCY = {
    "zero_out": "zero-out: one {unit}'s contributions are replaced by zero wherever it takes part",
    "replace_one": "replace-one: one {unit} is replaced by another",
    "add_or_remove": "add-or-remove: one {unit} is added or removed; the number of {unit}s is public",
}

_NOT_COVERED = (
    "floating-point attacks: noise and sums are ordinary floating-point numbers, rounded as such",
    "an observer who knows bare noise: keys have 256 bits, but the generators are not cryptographic",
    "side channels, such as running time or memory",
    "choosing hyper-parameters (learning rate, clip norm, epochs) on the same private data",
    "anything computed from the data outside the noisy sums: losses, metrics, batch sizes, normalisation",
    "a deployment that departs from the assumptions above, or that loses or shares the random keys",
)


def round_up(value: float, digits: int = 4) -> str:
    """`value` rounded up to `digits` significant digits: a printed epsilon is never too small."""
    if value == 0 or not math.isfinite(value):
        return str(value)
    exponent = digits - 1 - math.floor(math.log10(abs(value)))
    scaled = value * 10.0**exponent
    nearest = round(scaled)
    # a value that is already short, such as 1.0000000000000002, is not pushed to the next digit
    rounded = nearest if math.isclose(scaled, nearest, rel_tol=1e-12) else math.ceil(scaled)
    return f"{rounded / 10.0**exponent:.{max(exponent, 0)}f}"


def statement_items(mechanism: Mechanism) -> list[tuple[str, str]]:
    """The statement as (heading, text) pairs, in the order a reviewer reads."""
    m, unit = mechanism, mechanism.unit
    epsilon = round_up(m.epsilon())
    items = [
        ("Guarantee", f"({epsilon}, {m.delta!r})-differential privacy of all {m.steps} releases together"),
        ("Privacy unit", f"one {unit}"),
        ("Adjacency", _ADJACENCY[m.adjacency].format(unit=unit)),
        ("Notion", _notion(m)),
        ("Also", _also(m)),
        ("Batches", m.sampling.describe()),
        ("Participation", m.participation.describe()),
        ("Strategy", m.strategy.describe()),
        ("Sensitivity", _sensitivity(m)),
        ("Clip norm", f"each {unit}'s contribution to one step has 2-norm at most {m.clip_norm!r}"),
        ("Noise std", f"{m.noise_std!r} x clip norm per coordinate of Z; the release adds rows of C^-1 Z"),
        ("Noise multiplier", _noise_multiplier(m)),
        ("Divisor", f"every noisy sum is divided by the constant {m.expected_batch_size}"),
        (
            "Observer",
            "sees every noisy gradient and every model; knows C, the sampling scheme and all other data",
        ),
        ("Not covered", "; ".join(_NOT_COVERED)),
        ("Fingerprint", m.fingerprint),
    ]
    return items


def statement(mechanism: Mechanism, width: int = 100) -> str:
    """The statement as plain text."""
    return lay_out(statement_items(mechanism), width)


def lay_out(items: list[tuple[str, str]], width: int = 100) -> str:
    """(heading, text) pairs as plain text."""
    lines = []
    for heading, text in items:
        indent = " " * 18
        wrapped = textwrap.wrap(text, width - 18, break_on_hyphens=False) or [""]
        lines.append(f"{heading + ':':<18}{wrapped[0]}")
        lines.extend(indent + line for line in wrapped[1:])
    return "\n".join(lines)


def _notion(m: Mechanism) -> str:
    if m.accountant is not None:
        return m.accountant.describe()
    return "Gaussian differential privacy of one Gaussian mechanism (exact), which gives (epsilon, delta)-DP"


def _also(m: Mechanism) -> str:
    text = f"{round_up(m.gdp())}-GDP (mu), {round_up(m.rho())}-zCDP (rho)"
    return f"{text}; both without amplification, so weaker than the line above" if m.amplified else text


def _sensitivity(m: Mechanism) -> str:
    s = m.sensitivity
    kind = "exact" if s.exact else "an upper bound"
    text = f"{s.value:.10g}, {kind}, by {s.method}; holds in every dimension"
    if m.amplified:
        return f"largest column norm of C {m.reference_sensitivity:.10g}; unamplified {text}"
    return text


def _noise_multiplier(m: Mechanism) -> str:
    reference = "the largest column norm of C" if m.amplified else "sens(C, participation)"
    return f"{m.noise_multiplier!r} = noise std / {reference} ({m.reference_sensitivity:.10g})"
