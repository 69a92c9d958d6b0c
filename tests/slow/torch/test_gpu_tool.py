"""The script for machines with a GPU, on the CPU: its checks run, and one that fails is written down."""

import json

import pytest

from tools import gpu

pytest.importorskip("opacus", reason="one of its checks is beside Opacus")


def test_every_check_passes_on_the_cpu(tmp_path, capsys):
    assert gpu.main(["--device", "cpu", "--quick", "--out", str(tmp_path)]) == 0
    (record,) = [json.loads(path.read_text()) for path in tmp_path.glob("gpu-*.json")]
    assert len(record["checks"]) == 12 and all(check["ok"] for check in record["checks"].values())
    assert record["torch"] and "Saved" in capsys.readouterr().out


def test_a_check_that_fails_is_written_down_and_the_others_run(tmp_path, monkeypatch, capsys):
    rows = gpu.clipped_by_loop
    monkeypatch.setattr(gpu, "clipped_by_loop", lambda *given: 2 * rows(*given))
    two = {"a": lambda: gpu.gradients(gpu.perceptron, "rows", "cpu"), "b": lambda: {"seen": 1.0}}
    monkeypatch.setattr(gpu, "checks", lambda device, quick: two)
    assert gpu.main(["--device", "cpu", "--out", str(tmp_path)]) == 1
    (record,) = [json.loads(path.read_text()) for path in tmp_path.glob("gpu-*.json")]
    assert "differ" in record["checks"]["a"]["error"] and record["checks"]["b"]["ok"]
    assert "NO  a" in capsys.readouterr().out
