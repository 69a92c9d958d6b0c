"""All benchmarks, one after the other, each in a process of its own: `make bench`.

    python benchmarks/run.py [--json DIR] [NAME ...]

Each benchmark runs both sides of its comparison interleaved in one process and prints ratios.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).parent
NAMES = ("noise", "training_step", "optimize", "streaming", "federated")


def main() -> int:
    parser = argparse.ArgumentParser(description="Run the benchmarks.")
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"any of {', '.join(NAMES)} (default: all)")
    parser.add_argument("--json", type=Path, metavar="DIR", help="also write DIR/NAME.json")
    options = parser.parse_args()
    if unknown := set(options.names) - set(NAMES):
        parser.error(f"unknown benchmark {sorted(unknown)[0]!r}: choose from {', '.join(NAMES)}")
    if options.json:
        options.json.mkdir(parents=True, exist_ok=True)
    failed = 0
    for name in options.names or NAMES:
        print(f"== {name} ==", flush=True)
        command = [sys.executable, str(HERE / f"{name}.py")]
        if options.json:
            command += ["--json", str(options.json / f"{name}.json")]
        failed += subprocess.run(command, check=False).returncode != 0
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
