"""Streams with one key have one noise in these tests, as salts are the same; see `salted` for the others."""

import pytest

from anechoic.runs import digests

AS_IT_IS = digests.new_salt


@pytest.fixture(autouse=True)
def one_salt(monkeypatch):
    """Two streams can be compared bit for bit."""
    monkeypatch.setattr(digests, "new_salt", bytes)


@pytest.fixture
def salted(one_salt, monkeypatch):
    """As outside of tests: every stream, and every opening of a state file, has noise of its own."""
    monkeypatch.setattr(digests, "new_salt", AS_IT_IS)
