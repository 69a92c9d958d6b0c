"""The benchmarks of speed, one after the other, each in a process of its own: `make bench`.

    python benchmarks/run.py [--json DIR] [NAME ...]

Each of them runs both sides of its comparison interleaved in one process and prints ratios; the last is a
cell of the grid. Studies take from minutes to an hour, and are run by name.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).parent
NAMES = ("noise", "training_step", "optimize", "streaming", "federated", "flower", "grid")
#: What a benchmark is called with here: the whole grid takes hours.
ARGUMENTS = {"grid": ["--quick"]}
STUDIES = (
    "accounting",  # amplified accounting against references
    "audit_faults",  # which faults the audit sees
    "calibration",  # probabilities and coefficients of LogisticRegression on ten data sets
    "choosing",  # plan() against every number of bands
    "clip_norm",  # accuracy over the clip norm, with the rate that suits each
    "engines",  # frames of Polars and DuckDB into a stream, beside the same sums without privacy
    "federated_costs",  # bytes and seconds of a round on the server
    "figures",  # the monograph's figures
    "finetune",  # loss of a small language model, fine-tuned with and without the plan
    "finetune_memory",  # speed and memory of private fine-tuning, beside Opacus
    "ftrl",  # private FTRL on real data
    "ghost_ways",  # which way to the norms of rows is the cheapest
    "gradient_modes",  # a training step by grad_sample_mode
    "linear",  # linear estimators beside diffprivlib, Opacus and scikit-learn
    "offices",  # error and coverage of what offices publish
    "optima",  # each class of strategies beside the best matrix
    "planning",  # plan() against its own subsets
    "ranks",  # noise and steps that two ranks share
    "reach",  # how far each class of strategies goes
    "spark",  # micro-batches of Spark into a stream, beside the same query without privacy
    "selection",  # what the choice of a setting costs
    "tables",  # the published tables
    "trainers",  # a trainer's loop beside the bare engine
    "why",  # the pictures of docs/why.md
)


def main() -> int:
    parser = argparse.ArgumentParser(description="Run the benchmarks.")
    parser.add_argument(
        "names",
        nargs="*",
        metavar="NAME",
        help=f"any of {', '.join(NAMES)} (default: these), or of the studies {', '.join(STUDIES)}",
    )
    parser.add_argument("--json", type=Path, metavar="DIR", help="also write DIR/NAME.json")
    options = parser.parse_args()
    if unknown := set(options.names) - {*NAMES, *STUDIES}:
        parser.error(f"unknown benchmark {sorted(unknown)[0]!r}: choose from {', '.join(NAMES + STUDIES)}")
    if options.json:
        options.json.mkdir(parents=True, exist_ok=True)
    failed = 0
    for name in options.names or NAMES:
        print(f"== {name} ==", flush=True)
        command = [sys.executable, str(HERE / f"{name}.py"), *ARGUMENTS.get(name, [])]
        if options.json and '"--json"' in Path(command[1]).read_text(encoding="utf-8"):
            command += ["--json", str(options.json / f"{name}.json")]
        failed += subprocess.run(command, check=False).returncode != 0
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
