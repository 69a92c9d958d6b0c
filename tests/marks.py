"""Marks that tests share."""

import pytest


def slow(*values):
    """Parameters that `make test-all` tries and `make test` leaves out; a tuple stands for several."""
    return [
        pytest.param(*(value if isinstance(value, tuple) else (value,)), marks=pytest.mark.slow)
        for value in values
    ]


def mostly_slow(names, *, quick):
    """All `names` as parameters: those in `quick` in every run, the others as by `slow`."""
    missing = set(quick) - set(names)
    if missing:
        raise ValueError(f"quick={sorted(missing)} are not among the names: {sorted(names)}")
    return [name if name in quick else slow(name)[0] for name in names]
