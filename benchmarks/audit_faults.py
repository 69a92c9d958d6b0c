"""The audit against implementations that are broken on purpose: which fault is seen, by what, how surely.

    python benchmarks/audit_faults.py [--json PATH] [--repeats 60]

A fault is put into the library by replacing one function (tests/audit/faults.py), runs are made through
`PrivacyEngine` on canaries, and `audit_training` judges them. Each run is also made without the fault.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))  # the faults are those of the tests

from anechoic.audit.bounds import lower_proportion
from anechoic.audit.power import canaries_needed
from tests.audit.faults import FAULTS, run


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


def markdown(records: list[dict[str, Any]]) -> str:
    """All statistics in Markdown; docs/audit.md has one of each fault."""
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
    lines = ["| claimed mu | canaries, Gaussian fit |", "|---|---|"]
    lines += [f"| {mu:g} | {canaries_needed(mu):,} |" for mu in (0.3, 1.0, 3.0, 5.0)]
    return "\n".join(lines)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--json", type=Path, metavar="PATH")
    parser.add_argument("--repeats", type=int, default=60)
    options = parser.parse_args()
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
