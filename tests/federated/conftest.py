"""Fixtures of these tests."""

import pytest

from tests.federated.small import Recorder
from tests.streaming.conftest import one_salt, salted  # noqa: F401 - servers are compared bit for bit too


@pytest.fixture
def recorder(monkeypatch):
    return Recorder(monkeypatch)
