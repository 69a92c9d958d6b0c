"""Values as they are typed: counts such as 1e6, sizes such as 8GB, lists."""

from __future__ import annotations

import argparse
import re
from decimal import Decimal
from pathlib import Path

from anechoic._validate import byte_count
from anechoic.statement.formats import FORMATS


def count(text: str) -> int:
    """An integer >= 1; underscores and commas may group its digits, and 1e6 is a million."""
    grouped = text.replace(",", "_")
    try:
        value = int(Decimal(grouped)) if re.fullmatch(r"[\d_.]+[eE]\+?\d{1,2}", grouped) else int(grouped)
        if value != Decimal(grouped):
            raise ValueError(text)
    except (ValueError, ArithmeticError) as error:
        raise argparse.ArgumentTypeError(f"{text!r} is not an integer") from error
    if value < 1:
        raise argparse.ArgumentTypeError(f"{text} must be at least 1")
    return value


def steps_over(text: str) -> int | None:
    """How many steps a figure is of, the last ones; None for "all"."""
    return None if text == "all" else count(text)


def size(text: str) -> int:
    """A number of bytes, with a unit: 2GB is 2·10⁹, 2GiB is 2·2³⁰."""
    try:
        return int(byte_count("the size", text))
    except ValueError as error:
        raise argparse.ArgumentTypeError(f"{text!r} is not a size such as 2GB, 512MiB or 1000000") from error


def kept(text: str) -> str | float:
    """What is kept of a run, a word or a weight; `plan` says which."""
    try:
        return float(text)
    except ValueError:
        return text


def format_and_file(text: str) -> tuple[str, Path]:
    """FORMAT=FILE, of a statement."""
    name, _, file = text.partition("=")
    if name not in FORMATS or not file:
        raise argparse.ArgumentTypeError(f"{text!r} must be FORMAT=FILE, with one of {', '.join(FORMATS)}")
    return name, Path(file)
