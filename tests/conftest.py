"""Settings that every test shares."""

import gc
from collections import defaultdict

import pytest
from hypothesis import settings

from tests.marks import spread

gc.disable()  # until all tests are collected, see below

settings.register_profile("anechoic", derandomize=True, deadline=None, print_blob=False)
settings.load_profile("anechoic")


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items):
    """`few(k)`: k cases of a test run every time, those in between in `make test-all`."""
    cases = defaultdict(list)
    for item in items:
        mark = item.get_closest_marker("few")
        if mark is not None and item.get_closest_marker("slow") is None:
            cases[item.parent, item.originalname, mark.args[0]].append(item)
    for (*_, count), found in cases.items():
        kept = spread(len(found), count)
        for place, item in enumerate(found):
            if place not in kept:
                item.add_marker("slow")
    for item in items:  # a busy machine is no failure: the limit is there for what hangs
        if item.get_closest_marker("slow") is not None and item.get_closest_marker("timeout") is None:
            item.add_marker(pytest.mark.timeout(1800))


@pytest.fixture(autouse=True)
def other_process(monkeypatch):
    """Forget what other tests released under the same keys; called, it does so once more."""
    monkeypatch.setattr("anechoic.runs.ledger._MADE", made := {})
    return made.clear


def pytest_collection_finish():
    """Imports and collection leave a million objects: let the collector pass them by, test after test."""
    gc.collect()
    gc.freeze()
    gc.enable()
