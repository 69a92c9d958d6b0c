"""The statement of several mechanisms on the same data."""

from __future__ import annotations

from anechoic.mechanism.composition import Composition
from anechoic.mechanism.statement_text import guarantee, rounded, stated
from anechoic.mechanism.theorems import COMPOSITION
from anechoic.statement.rounding import round_up
from anechoic.statement.statement import Assumption, Statement, statement_of


@statement_of.register
def _(composition: Composition) -> Statement:
    """The statement of a composition: its own guarantee, and what the statements of its parts assume."""
    c = composition
    delta, epsilon = c.delta, c.epsilon()
    parts = [(part, count, statement_of(part)) for part, count in c.parts]
    meaning = parts[0][2].record["adjacency"]["meaning"]
    whole = f"({round_up(epsilon)}, {delta!r})-differential privacy of all runs together"
    items = [
        ("Guarantee", whole),
        ("Runs", f"{c.runs}, of {len(parts)} mechanisms"),
        ("Privacy unit", f"one {c.unit}"),
        ("Adjacency", meaning),
        ("Notion", c.notion()),
        ("Also", f"{round_up(c.gdp())}-GDP (mu), {round_up(c.rho())}-zCDP (rho)"),
    ]
    if c.amplified:
        items[-1] = ("Also", f"{items[-1][1]}; both without amplification")
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
    floats = [rounded(part) for part, _ in c.parts]
    largest = max((count for count in floats if count is not None), default=None)
    return stated(
        tuple(items), tuple(assumptions), tuple(proofs), c.unit, fingerprint, record, rounded=largest
    )
