"""Walks through the code for ARCHITECTURE.md: python -m studies.walks [--write]

Which functions a calibration and a stream's release enter first in each file, in order. Each walk is traced
in a process of its own, so that no cache of another one shortens it.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any

import anechoic

PAGE = Path(__file__).parents[1] / "ARCHITECTURE.md"
_ROOT = Path(anechoic.__file__).parent


def traced(work: Callable[[], Any]) -> list[str]:
    """The first function that `work` enters in each file of the package, in order."""
    found: dict[str, str] = {}

    def entered(frame: FrameType, event: str, _: Any) -> None:
        path = Path(frame.f_code.co_filename)
        if event == "call" and path.is_relative_to(_ROOT) and not frame.f_code.co_name.startswith("<"):
            name = path.relative_to(_ROOT).as_posix()
            found.setdefault(name, frame.f_code.co_qualname)

    sys.setprofile(entered)
    try:
        work()
    finally:
        sys.setprofile(None)
    return [f"{name:44} {function}" for name, function in found.items()]


def calibration() -> list[str]:
    """The noise of eight bands for epsilon 1, by cyclic Poisson sampling."""
    from anechoic import calibrate, workloads
    from anechoic.sampling import CyclicPoisson
    from anechoic.strategies import BandedToeplitz, Toeplitz

    bands = Toeplitz.square_root(workloads.prefix_sum(8)).coefficients
    strategy = BandedToeplitz(64, bands)
    sampling = CyclicPoisson(examples=10_000, batch_size=100, groups=8, steps=64)
    return traced(lambda: calibrate(strategy, sampling=sampling, epsilon=1.0, delta=1e-6))


def release() -> list[str]:
    """A release of a count that is kept in memory."""
    from anechoic.streaming import Count, Stream

    stream = Stream(Count(), horizon=64, epsilon=1.0, delta=1e-6)
    stream.update(100)
    stream.release()

    def one() -> None:
        stream.update(100)
        stream.release()

    return traced(one)


WALKS = {"A calibration": calibration, "A stream's release": release}


def walk(title: str) -> str:
    """One walk, traced in a new process."""
    command = [sys.executable, "-m", "studies.walks", "--only", title]
    done = subprocess.run(command, capture_output=True, text=True, check=True, cwd=PAGE.parent)
    return done.stdout


def block(title: str, lines: str) -> str:
    """A section of the page."""
    about = WALKS[title].__doc__ or ""
    return f"### {title}\n\n{about}\n\n```\n{lines.rstrip()}\n```\n"


def page(text: str) -> str:
    """The page, its walks taken anew."""
    head, mark, _ = text.partition("<!-- walks -->\n")
    return head + mark + "\n" + "\n".join(block(title, walk(title)) for title in WALKS)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", choices=WALKS)
    parser.add_argument("--write", action="store_true", help="into ARCHITECTURE.md")
    options = parser.parse_args()
    if options.only is not None:
        print("\n".join(WALKS[options.only]()))
        return
    text = page(PAGE.read_text(encoding="utf-8"))
    if options.write:
        PAGE.write_text(text, encoding="utf-8")
    else:
        print(text)


if __name__ == "__main__":
    main()
