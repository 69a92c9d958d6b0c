"""The audit against implementations that are broken on purpose: which fault is seen, by what, how surely.

    python benchmarks/audit_faults.py [--json PATH] [--repeats 60]

A fault is put into the library by replacing one function (tests/audit/faults.py), runs are made through
`PrivacyEngine` on canaries, and `audit_training` judges them. Each run is also made without the fault.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[1]))  # the faults are those of the tests

from anechoic.audit.bounds import lower_proportion
from anechoic.audit.draws import draw_test
from anechoic.audit.law import law_of
from anechoic.audit.power import canaries_needed, draw_ratios, entries_needed, epsilon_power
from anechoic.sampling import BallsInBins, CyclicPoisson, MinSepSampling, Poisson, RandomAllocation
from tests.audit.faults import FAULTS, banded, cyclic, run


def table(repeats: int) -> list[dict[str, Any]]:
    """One record for each fault and the statistic that sees it."""
    records = []
    for fault in FAULTS:
        faulty = [run(fault.mechanism, fault.inject, number=i, **fault.options) for i in range(repeats)]
        clean = [run(fault.mechanism, number=i, label=fault.name, **fault.options) for i in range(repeats)]
        for name in fault.caught_by:
            found = [report.finding(name) for report in faulty]
            caught = sum(finding.violated for finding in found)
            records.append(
                {
                    "fault": fault.name,
                    "test": name,
                    "statistic": found[0].statistic,
                    "found": found[0].found,
                    "claimed": found[0].claimed,
                    "clean": clean[0].finding(name).found,
                    "clean_claimed": clean[0].finding(name).claimed,
                    "caught": caught,
                    "repeats": repeats,
                    "power": float(lower_proportion(caught, repeats, 0.05)),
                    "false_alarms": sum(report.violated for report in clean),
                }
            )
    return records


SAMPLERS = {
    "Poisson": Poisson(400, 80, 24),
    "cyclic Poisson": CyclicPoisson(400, 25, 4, 48),
    "balls in bins": BallsInBins(400, 4, 24),
    "random allocation": RandomAllocation(400, 4, 24),
    "min-sep sampling": MinSepSampling(400, 50, 5, 24),
}
LEVEL = 0.05 / 6  # what `audit` gives to the test of sampling


def samplers(repeats: int, canaries: int = 400) -> str:
    """Samplers that forget how to draw, and false alarms of those that do not, by `draw_test` alone."""
    lines = ["| scheme | fault | caught | power at least | a run |", "|---|---|---|---|---|"]
    for name, scheme in SAMPLERS.items():
        rng = np.random.default_rng(1)
        for kind, fault in law_of(scheme).faults().items():
            drawn = [fault(canaries, rng) for _ in range(repeats)]
            draw_test(scheme, *drawn[0])  # what is simulated once is kept
            begun = time.process_time()
            caught = sum(draw_test(scheme, *one).p_value < LEVEL for one in drawn)
            spent = (time.process_time() - begun) / repeats
            power = float(lower_proportion(caught, repeats, 0.05))
            lines.append(f"| {name} | {kind} | {caught} of {repeats} | {power:.0%} | {1000 * spent:.0f} ms |")
        sound = [law_of(scheme).draw_units(canaries, rng) for _ in range(500)]
        alarms = sum(draw_test(scheme, *one).p_value < LEVEL for one in sound)
        lines.append(f"| {name} | none | {alarms} of 500 (at most {500 * LEVEL:.1f} expected) | | |")
    return "\n".join(lines)


def markdown(records: list[dict[str, Any]]) -> str:
    """The table of docs/audit.md."""
    lines = [
        "| fault | statistic | found | allowed | without the fault | caught | power at least |",
        "|---|---|---|---|---|---|---|",
    ]
    for r in records:
        clean = f"{r['clean']:.3g} of {r['clean_claimed']:.3g}"
        lines.append(
            f"| {r['fault']} | {r['test']}: {r['statistic']} | {r['found']:.3g} | {r['claimed']:.3g} |"
            f" {clean} | {r['caught']} of {r['repeats']} | {r['power']:.0%} |"
        )
    return "\n".join(lines)


def needed() -> str:
    """What it takes to see noise that is too small by a factor 1.2, with 95 % power at 95 % confidence."""
    lines = ["| claimed mu | canaries, Gaussian fit | canaries, Clopper-Pearson |", "|---|---|---|"]
    for mu in (0.3, 1.0, 3.0, 5.0):
        counts = [canaries_needed(mu, method=method) for method in ("fit", "threshold")]
        lines.append(f"| {mu:g} | {counts[0]:,} | {counts[1]:,} |")
    lines.append(f"\nentries of noise, by the covariance test's scale: {entries_needed()}\n")
    lines += [
        "| claimed epsilon | at delta | canaries | power, noise / 1.2 | power, noise / 2 |",
        "|---|---|---|---|---|",
    ]
    mechanism = cyclic(banded())
    draw = partial(draw_ratios, mechanism.strategy, mechanism.sampling, mechanism.noise_std)
    for delta, canaries in ((1e-5, 16_000), (0.1, 1000), (0.1, 4000), (0.1, 16_000), (0.1, 64_000)):
        claimed = mechanism.epsilon(delta)
        powers = [
            epsilon_power(draw, claimed=claimed, delta=delta, canaries=canaries, factor=f, repeats=40)
            for f in (1.2, 2.0)
        ]
        lines.append(f"| {claimed:.3g} | {delta:g} | {canaries:,} | {powers[0]:.0%} | {powers[1]:.0%} |")
    return "\n".join(lines)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--json", type=Path, metavar="PATH")
    parser.add_argument("--repeats", type=int, default=60)
    parser.add_argument("--samplers-only", action="store_true", help="only the faults of samplers")
    options = parser.parse_args()
    print(samplers(200) + "\n")
    if options.samplers_only:
        return 0
    records = table(options.repeats)
    print(markdown(records))
    alarms = {r["fault"]: r["false_alarms"] for r in records}
    print(f"\nfalse alarms: {sum(alarms.values())} of {len(alarms) * options.repeats} runs without a fault")
    print("\n" + needed())
    if options.json:
        options.json.write_text(json.dumps(records, indent=1), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
