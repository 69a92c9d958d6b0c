"""Flower must not report home from tests; runs are compared bit for bit, so that salts are the same."""

import os

from tests.streaming.conftest import one_salt  # noqa: F401

os.environ["FLWR_TELEMETRY_ENABLED"] = "0"
