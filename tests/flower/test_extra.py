"""Flower is an extra."""

import subprocess
import sys


def python(code):
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)


def test_without_flower_the_error_names_the_extra():
    done = python("import sys; sys.modules['flwr'] = None\nimport anechoic.flower")
    assert done.returncode != 0
    assert "ImportError: anechoic.flower needs Flower" in done.stderr
    assert "pip install 'anechoic[flower]'" in done.stderr


def test_federated_rounds_load_no_flower():
    done = python("import sys, anechoic.federated; sys.exit('flwr' in sys.modules)")
    assert done.returncode == 0, done.stderr
