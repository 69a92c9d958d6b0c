"""Flower must not report home from tests."""

import os

os.environ["FLWR_TELEMETRY_ENABLED"] = "0"
