"""Text of a mechanism's statement: gathered once, laid out by `anechoic.statement`."""

from __future__ import annotations

import math
from functools import singledispatch
from typing import Any

from anechoic.accounting import Verified
from anechoic.accounting.accountant import CERTAIN, CLOSED_FORM
from anechoic.mechanism.composition import Composition, Part
from anechoic.mechanism.endless import EndlessMechanism
from anechoic.mechanism.mechanism import Mechanism
from anechoic.mechanism.theorems import COMPOSITION, theorems_of, theorems_of_endless
from anechoic.mechanism.weak_delta import DOUBTFUL, examples_of, weak_delta
from anechoic.noise.grid import float_excess
from anechoic.noise.rounding.drift import before_drift
from anechoic.sampling import FixedOrder
from anechoic.sampling.base import Sampling, plural
from anechoic.statement.rounding import round_up
from anechoic.statement.software import software
from anechoic.statement.statement import LIBRARY, Assumption, Statement, statement_of
from anechoic.statement.theorem import Theorem

_ADJACENCY = {
    "zero_out": "zero-out: one {unit}'s contributions are replaced by zero wherever it takes part",
    "replace_one": "replace-one: one {unit} is replaced by another",
    "add_or_remove": "add-or-remove: one {unit} is added or removed; the number of {units} is public",
}

_OBSERVER = (
    "sees every noisy sum and all that is computed from them (every model), all their digits; knows the code,"
    " C, the sampling scheme and all data but the unit's, and with them the bare noise of other entries; does"
    " not know the keys or, where batches are secret, which of them the unit joined, and cannot tell AES-256,"
    " ChaCha20 and SHAKE-256 from random bits"
)

_NOT_COVERED = (
    "side channels: running time, memory",
    "choosing settings: hyper-parameters (learning rate, clip norm, epochs) by the same private data",
    "losses and metrics: anything computed from the data outside the noisy sums, batch sizes, normalisation",
    "broken promises: a deployment that departs from the assumptions above, or loses or shares the keys",
)

_LARGE = (0.1, 0.03, 0.01, 0.001)  # deltas

#: The duty of whoever makes the keys; those who depart from it say so in its place.
KEYS = "keys stay secret: they come from the operating system, and are used for this run only"

_DUTIES = (
    "one unit per contribution: each uses one {unit}'s data alone. Whoever writes the code (script, model,"
    " loss, data set) promises that it is computed from them, its place in the batch (which stays empty where"
    " its contributions are replaced by zero) and from what was released before, not from other records,"
    " numbers taken out of a batch, or the length to which others are padded. anechoic.torch refuses"
    " mistakes that its tensors show; code that means to get around it is not held back",
    KEYS,
    "only releases, and what follows from them, leave: noisy sums, and models or figures that are computed"
    " from them; checkpoints that hold keys stay",
    "other releases add up: those from the same data, with this one",
    "the journal is kept: a resumed run makes those releases again, bit for bit, or stops (anechoic.torch"
    " compares them); the journal stays with the checkpoint, and of two copies of a run only one goes on",
)


@statement_of.register
def _(mechanism: Mechanism) -> Statement:
    """The statement of a mechanism with a last step."""
    m, unit = mechanism, mechanism.unit
    epsilon = m.epsilon()
    method, confidence = (CLOSED_FORM, CERTAIN) if m.accountant is None else m.accountant.evaluation(epsilon)
    adjacency = _adjacency(m.adjacency, unit)
    whole = f"({round_up(epsilon)}, {m.delta!r})-differential privacy of all {m.steps} releases together"
    items = (
        ("Guarantee", whole),
        *too_large(m.delta, unit, count := examples_of(m.sampling)),
        ("Privacy unit", _one_of(unit, count)),
        ("Adjacency", adjacency),
        ("Notion", _notion(m)),
        ("Accounting", f"{method}; {confidence}"),
        ("Also", _also(m)),
        ("Batches", m.sampling.describe(m.unit)),
        ("Participation", m.participation.describe()),
        ("Strategy", m.strategy.describe()),
        ("Sensitivity", _sensitivity(m)),
        ("Clip norm", f"each {unit}'s contribution to one step has 2-norm at most {m.clip_norm!r}"),
        ("Noise std", f"{m.noise_std:.6g} x clip norm per coordinate of Z; the release adds rows of C^-1 Z"),
        ("Noise multiplier", _noise_multiplier(m)),
        ("Divisor", f"every noisy sum is divided by the constant {_counted(m.expected_batch_size)}"),
        ("Arithmetic", _arithmetic(m)),
    )
    record = {
        "guarantee": guarantee(m, epsilon, _notion(m), releases=m.steps, profile=_profile(m)),
        "adjacency": {"name": m.adjacency, "meaning": adjacency},
        "accounting": {"method": method, "confidence": confidence, "samples": _samples(m)},
        "batches": {
            "scheme": type(m.sampling).__name__,
            "meaning": m.sampling.describe(m.unit),
            "divisor": m.expected_batch_size,
            "participation": m.participation.describe(),
            "max_participations": m.participation.max_participations_in(m.steps),
        },
        "strategy": {"name": m.strategy.describe(), "steps": m.steps, "rows": m.strategy.rows},
        **_noise(m, m.reference_sensitivity, _reference(m)),
        "arithmetic": _numbers(m),
    }
    assumptions = (*access_of(m.sampling, unit), *_ownership(unit))
    return assemble(items, assumptions, theorems_of(m), unit, m.fingerprint, record, rounded=rounds(m))


@statement_of.register
def _(mechanism: EndlessMechanism) -> Statement:
    """The statement of a mechanism without a last step."""
    m, unit = mechanism, mechanism.unit
    epsilon = m.epsilon()
    adjacency = "zero-out" if m.adjacency == "zero_out" else "replace-one"
    once = f"one {unit} takes part in at most one step, ever"
    participation = f"promised from outside: {once}"
    whole = f"({round_up(epsilon)}, {m.delta!r})-differential privacy of all releases together"
    items = (
        ("Guarantee", f"{whole}, however many there are"),
        ("Privacy unit", f"one {unit}, {adjacency} adjacency"),
        ("Adjacency", _adjacency(m.adjacency, unit)),
        ("Notion", _EXACT),
        ("Also", f"{round_up(m.gdp())}-GDP (mu), {round_up(m.rho())}-zCDP (rho)"),
        ("Participation", participation),
        ("Strategy", m.strategy.describe()),
        ("Sensitivity", f"at most {m.sensitivity.value:.6g}, {m.sensitivity.method}"),
        ("Clip norm", f"each {unit}'s contribution has 2-norm at most {m.clip_norm!r}"),
        ("Noise std", f"{m.noise_std:.6g} x clip norm per coordinate of Z; the release adds C^-1 Z"),
        ("Noise multiplier", f"{m.noise_multiplier:.6g} = noise std / limiting sensitivity"),
        ("Divisor", f"every noisy sum is divided by the constant {_counted(m.batch_size)}"),
        ("Arithmetic", _arithmetic(m)),
    )
    record = {
        "guarantee": guarantee(m, epsilon, _EXACT, releases=None),
        "adjacency": {"name": m.adjacency, "meaning": _adjacency(m.adjacency, unit)},
        "accounting": {"method": CLOSED_FORM, "confidence": CERTAIN, "samples": None},
        "batches": {"scheme": None, "divisor": m.batch_size, "max_participations": 1}
        | {"meaning": participation, "participation": participation},
        "strategy": {"name": m.strategy.describe(), "steps": None, "rows": None},
        **_noise(m, m.sensitivity.value, "limiting sensitivity"),
        "arithmetic": _numbers(m),
    }
    promised = Assumption("whoever forms the batches", f"participation is as promised: {once}")
    assumptions = (promised, *_ownership(unit))
    return assemble(items, assumptions, theorems_of_endless(m), unit, m.fingerprint, record, rounds(m))


def guarantee(m: Part | Composition, epsilon: float, notion: str, **of: Any) -> dict[str, Any]:
    """Epsilon and what goes with it, as plain data; `of` says of what, and more points of its curve."""
    first = {"epsilon": epsilon, "delta": m.delta, "profile": [], **of, "notion": notion}
    return {**first, "mu": m.gdp(), "rho": m.rho(), "epsilon_is_amplified": m.amplified}


def rounds(m: Part) -> float | None:
    """Contributions in a sum of floating-point numbers; None if sums are integers."""
    return None if m.grid_bits is not None else m.expected_batch_size


def _noise(m: Part, sensitivity: float, reference: str) -> dict[str, Any]:
    """Sensitivity and noise as plain data; `sensitivity` is what the noise multiplier refers to."""
    return {
        "sensitivity": {
            "value": m.sensitivity.value,
            "exact": m.sensitivity.exact,
            "method": m.sensitivity.method,
            "unit": "clip norms",
        },
        "noise": {
            "std": m.noise_std,
            "std_unit": "clip norms",
            "clip_norm": m.clip_norm,
            "multiplier": m.noise_multiplier,
            "reference_sensitivity": sensitivity,
            "reference": reference,
        },
    }


def assemble(
    items: tuple[tuple[str, str], ...],
    assumptions: tuple[Assumption, ...],
    proofs: tuple[Theorem, ...],
    unit: str,
    fingerprint: str,
    record: dict[str, Any],
    rounded: float | None,
) -> Statement:
    """With what every statement says: duties, what is not covered, and the software.

    Args:
        rounded: contributions in the largest sum that is a floating-point number; None if all are
            integers, so that floating point is covered.
    """
    duties = tuple(duty.format(unit=unit) for duty in _DUTIES)
    return Statement(
        items,
        assumptions,
        _OBSERVER,
        proofs,
        duties,
        _NOT_COVERED if rounded is None else (_floats(rounded), *_NOT_COVERED),
        software(),
        fingerprint,
        {"unit": unit, **record},
    )


_EXACT = "Gaussian differential privacy of one Gaussian mechanism (exact), which gives (epsilon, delta)-DP"


def _adjacency(name: str, unit: str) -> str:
    return _ADJACENCY[name].format(unit=unit, units=plural(unit))


def _notion(m: Mechanism) -> str:
    return _EXACT if m.accountant is None else m.accountant.describe()


def _samples(m: Mechanism) -> dict[str, float | int] | None:
    if not isinstance(m.accounting, Verified):
        return None
    return {"samples": m.accounting.samples, "failure": m.accounting.failure, "seed": m.accounting.seed}


def _profile(m: Mechanism) -> list[list[float]]:
    """(epsilon, delta) of an amplified run at large deltas, where an attacker's rates of success are decided.

    Without amplification the curve of mu is exact, and says more.
    """
    if m.accountant is None or not m.accountant.hides:
        return []
    parts = [(delta, *before_drift(delta, m.drift)) for delta in _LARGE if delta > m.delta]
    return [[float(m.accountant.bound(inner, m.noise_std) + more), delta] for delta, inner, more in parts]


def _also(m: Mechanism) -> str:
    text = f"{round_up(m.gdp())}-GDP (mu), {round_up(m.rho())}-zCDP (rho)"
    return f"{text}; both without amplification, so weaker than the line above" if m.amplified else text


def _numbers(m: Part) -> dict[str, Any]:
    """What floating point may do, as plain data; no bound on sums of 2**24 contributions or more."""
    excess = 0.0 if m.grid_bits is not None else float_excess(m.expected_batch_size)
    known = excess if math.isfinite(excess) else None
    return {"grid_bits": m.grid_bits, "sum_excess": known, "drift": m.drift}


def _counted(value: float) -> float:
    """A number of contributions for people: 200.0 is 200."""
    return int(value) if float(value).is_integer() else value


def _excess(count: float) -> str:
    """How far rounding may take the sum of `count` contributions, for people."""
    excess = float_excess(count)
    one = f"without one of {_counted(count)} contributions" if count > 1 else "without its one contribution"
    if math.isinf(excess):
        return f"{one} nothing bounds how far a float32 sum moves"
    return f"{one} a float32 sum moves by at most 1 + {round_up(excess)} clip norms"


def _floats(count: float) -> str:
    return (
        f"floating-point attacks: {_excess(count)}, where the guarantee counts 1; and which floating-point"
        " numbers can be released depends on the data, which nothing bounds. With grid_bits"
        " (exact_sums=True) both are covered"
    )


def _arithmetic(m: Part) -> str:
    if m.grid_bits is None:
        sums = _excess(m.expected_batch_size)
        return f"floating point: {sums}; noise is rounded once to the precision of the release"
    text = (
        f"exact: contributions are rounded towards zero to multiples of clip norm x 2^-{m.grid_bits} and"
        " added up as integers, and noise is rounded to the same grid as real numbers would be"
    )
    return text if not m.drift else f"{text}; what its memory loses is a part of epsilon and delta"


def too_large(delta: float, unit: str, count: int | None) -> list[tuple[str, str]]:
    """A delta that promises little or next to nothing to `count` units, named beside the guarantee."""
    weak = weak_delta(delta, count, unit, least=DOUBTFUL)
    return [("Delta", weak)] if weak else []


def examples_of_all(composition: Composition) -> int | None:
    """N of all parts; None where they differ, are of disjoint data, or nobody said."""
    if composition.disjoint:
        return None
    counts = {examples_of(getattr(part, "sampling", None)) for part, _ in composition.parts}
    return counts.pop() if len(counts) == 1 else None


def _one_of(unit: str, count: int | None) -> str:
    return f"one {unit}" if count is None else f"one {unit} of {count}"


def _sensitivity(m: Mechanism) -> str:
    s = m.sensitivity
    kind = "exact" if s.exact else "an upper bound"
    text = f"{s.value:.6g}, {kind}, by {s.method}; holds in every dimension"
    largest = f"largest column norm of C {m.reference_sensitivity:.6g}"
    return f"{largest}; unamplified {text}" if m.amplified else text


def _reference(m: Mechanism) -> str:
    return "the largest column norm of C" if m.amplified else "sens(C, participation)"


def _noise_multiplier(m: Mechanism) -> str:
    return f"{m.noise_multiplier:.6g} = noise std / {_reference(m)} ({m.reference_sensitivity:.6g})"


@singledispatch
def access_of(sampling: Sampling, unit: str) -> tuple[Assumption, ...]:
    """Who promises which access to the data: a secret draw where it amplifies, else the participation."""
    if not sampling.amplified:
        what = f"{sampling.participation.describe()}; which batch one {unit} joins follows no private value"
        return (Assumption("whoever forms the batches", f"participation is as promised: {what}"),)
    return (
        Assumption(LIBRARY, "draws the batches as said above, independently of the data, from a secret key"),
        Assumption(
            "the deployment",
            f"batches stay secret: nobody learns which batches one {unit} joined, neither the key, nor the"
            " batches, nor their sizes, nor traces of them in logs",
        ),
    )


@access_of.register
def _(sampling: FixedOrder, unit: str) -> tuple[Assumption, ...]:
    return (
        Assumption(LIBRARY, "batch t is chunk t mod period of one order, the same in every pass"),
        Assumption("the deployment", "the order ignores private values: it was made without looking at them"),
    )


def _ownership(unit: str) -> tuple[Assumption, ...]:
    if unit == "example":
        return ()
    return (
        Assumption(
            "the deployment",
            f"clipped by unit: what one {unit} adds to one step, as a whole. Every example is charged to each"
            f" {unit} that owns it; where an example has several owners, who owns what is fixed and public",
        ),
    )


@statement_of.register
def _(composition: Composition) -> Statement:
    """The statement of a composition: its own guarantee, and what the statements of its parts assume."""
    c = composition
    delta, epsilon = c.delta, c.epsilon()
    parts = [(part, count, statement_of(part)) for part, count in c.parts]
    meaning = parts[0][2].record["adjacency"]["meaning"]
    whole = f"({round_up(epsilon)}, {delta!r})-differential privacy of all runs together"
    count, also = examples_of_all(c), f"{round_up(c.gdp())}-GDP (mu), {round_up(c.rho())}-zCDP (rho)"
    items = [
        ("Guarantee", whole),
        *too_large(delta, c.unit, count),
        ("Runs", f"{c.runs}, of {len(parts)} mechanisms"),
        ("Privacy unit", _one_of(c.unit, count)),
        ("Adjacency", meaning),
        ("Notion", c.notion()),
        ("Also", also + "; both without amplification" * c.amplified),
    ]
    alone = [part.epsilon(delta) for part, _, _ in parts]
    items += [
        ("Part", f"{count} x {part!r}, ({round_up(one)}, {delta!r}) alone")
        for (part, count, _), one in zip(parts, alone, strict=True)
    ]
    # each way to compute once: parts often share it
    ways = dict.fromkeys(dict(statement.items)["Arithmetic"] for _, _, statement in parts)
    items += [("Arithmetic", text) for text in ways]
    assumptions = [Assumption("the deployment", c.assumption())]
    proofs = [COMPOSITION]
    for _, _, statement in parts:
        assumptions += [each for each in statement.assumptions if each not in assumptions]
        proofs += [proof for proof in statement.proofs if proof not in proofs]
    record = {
        "guarantee": guarantee(c, epsilon, c.notion(), runs=c.runs, disjoint=c.disjoint),
        "adjacency": {"name": c.adjacency, "meaning": meaning},
        "parts": [
            {"runs": count, "epsilon_alone": one, "fingerprint": statement.fingerprint, **statement.record}
            for (_, count, statement), one in zip(parts, alone, strict=True)
        ],
    }
    fingerprint = "none: each part has its own"
    floats = [rounds(part) for part, _ in c.parts]
    largest = max((count for count in floats if count is not None), default=None)
    return assemble(
        tuple(items), tuple(assumptions), tuple(proofs), c.unit, fingerprint, record, rounded=largest
    )
