"""Flower is an extra."""

import subprocess
import sys

CODE = """
import sys
import anechoic.federated
assert "flwr" not in sys.modules, "anechoic.federated loads Flower"
sys.modules["flwr"] = None  # as if it were not installed
import anechoic.flower
"""


def test_without_flower_the_error_names_the_extra():
    done = subprocess.run([sys.executable, "-c", CODE], capture_output=True, text=True, check=False)
    assert done.returncode != 0
    assert "ImportError: anechoic.flower needs Flower" in done.stderr
    assert "pip install 'anechoic[flower]'" in done.stderr
