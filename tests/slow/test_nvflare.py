"""The example of hospitals, in NVFlare's own simulator."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.slow
def test_hospitals_train_in_the_simulator(tmp_path):
    pytest.importorskip("nvflare", reason="no extra installs it")
    places = [str(ROOT / "src"), str(ROOT / "examples/nvflare")]
    done = subprocess.run(
        [sys.executable, str(ROOT / "examples/nvflare/job.py"), str(tmp_path)],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(places)},
        capture_output=True,
        text=True,
        timeout=600,
    )
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
    assert "(20.00, 0.001)-differential privacy of all 4 releases" in done.stdout
    assert float(done.stdout.split("took no part:")[1]) > 0.75
