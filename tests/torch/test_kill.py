"""kill -9 in the middle of training: what resumes ends with the weights of a run that was never killed."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from tests.torch.killed import STEPS, run

ROOT = Path(__file__).resolve().parents[2]


def launch(path, workers, result):
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join([str(ROOT / "src"), str(ROOT), os.environ.get("PYTHONPATH", "")]),
        "OMP_NUM_THREADS": "1",
    }
    command = [sys.executable, "-m", "tests.torch.killed", str(path), str(workers), str(result)]
    return subprocess.Popen(
        command, cwd=ROOT, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        start_new_session=True,
    )  # fmt: skip


def kill_after(process, releases):
    """SIGKILL the process and its workers once it has made so many releases; returns the last seen."""
    seen = 0
    for line in process.stdout:
        if line.strip().isdigit():
            seen = int(line)
        if seen >= releases:
            break
    os.killpg(process.pid, signal.SIGKILL)
    process.communicate()
    assert process.returncode == -signal.SIGKILL
    return seen


def finish(process):
    output, errors = process.communicate(timeout=200)
    assert process.returncode == 0, errors
    return output


@pytest.mark.slow  # test_random_kills ends and resumes scripts in every run
@pytest.mark.skipif(not hasattr(signal, "SIGKILL"), reason="needs POSIX signals")
@pytest.mark.parametrize("workers", [0, 2])
def test_a_killed_run_resumes_bit_for_bit(workers, tmp_path):
    path, result = tmp_path / "run.ckpt", tmp_path / "result.pt"
    process = launch(path, workers, result)
    killed = kill_after(process, 9)
    process = launch(path, workers, result)
    with torch.random.fork_rng():
        run("none", 0, tmp_path / "whole.pt")
    resumed_at = int(finish(process).split()[1])
    assert killed <= resumed_at < STEPS
    assert torch.equal(
        torch.load(result, weights_only=True), torch.load(tmp_path / "whole.pt", weights_only=True)
    )
