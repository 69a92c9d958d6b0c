"""The scripts of examples/ run as people start them."""

import os
import re
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

pytestmark = [pytest.mark.slow, pytest.mark.timeout(580)]
ROOT = Path(__file__).resolve().parents[4]
TORCHRUN = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node")
ACCELERATE = ("-m", "accelerate.commands.launch", "--cpu", "--num_processes")


def said(*command):
    """What the script prints, by name."""
    variables = {
        **os.environ,
        "PYTHONPATH": f"{ROOT / 'src'}:{ROOT}",
        "OMP_NUM_THREADS": "1",
        "GLOO_SOCKET_IFNAME": "lo",
    }
    done = subprocess.run(
        [sys.executable, *command], cwd=ROOT, env=variables, capture_output=True, text=True, timeout=300,
        check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-4000:]
    return dict(re.findall(r"^(accuracy|epsilon|weights) (\S+)$", done.stdout, re.M))


def test_under_torchrun_and_again_on_another_number_of_ranks(tmp_path):
    first = said(*TORCHRUN, "2", "examples/ddp.py", str(tmp_path))
    assert float(first["accuracy"]) > 0.7 and 7.0 < float(first["epsilon"]) <= 8.0
    again = said("examples/ddp.py", str(tmp_path))  # one process repeats what follows the last checkpoint
    assert again == first


def test_under_accelerate(tmp_path):
    if find_spec("accelerate") is None:
        pytest.skip("accelerate is not installed")
    found = said(*ACCELERATE, "2", "examples/ddp.py", str(tmp_path))
    assert float(found["accuracy"]) > 0.7
