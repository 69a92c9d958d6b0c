"""kill -9 in the middle of training: what resumes ends with the weights of a run that was never killed."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import torch

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


@pytest.mark.skipif(not hasattr(signal, "SIGKILL"), reason="needs POSIX signals")
def test_a_killed_run_resumes_bit_for_bit(tmp_path):
    whole = launch("none", 0, tmp_path / "whole.pt")
    paths = {}
    for workers in (0, 2):  # the same keys, so each needs a place for its journal
        (tmp_path / str(workers)).mkdir()
        paths[workers] = (tmp_path / str(workers) / "run.ckpt", tmp_path / f"{workers}.pt")
    running = {workers: launch(path, workers, result) for workers, (path, result) in paths.items()}
    killed = {workers: kill_after(process, 17 + 6 * workers) for workers, process in running.items()}
    running = {workers: launch(path, workers, result) for workers, (path, result) in paths.items()}
    finish(whole)
    expected = torch.load(tmp_path / "whole.pt", weights_only=True)
    for workers, process in running.items():
        resumed_at = int(finish(process).split()[1])
        assert killed[workers] <= resumed_at < 80
        assert torch.equal(torch.load(paths[workers][1], weights_only=True), expected)
