"""fit(ckpt_path=…) goes on bit for bit, from a checkpoint and its keys, which are in a file of their own."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from anechoic.errors import CheckpointError
from anechoic.trainers import Privacy
from tests.trainers.lightning.setting import GUARANTEE, KEYS, QUIET, fitted, flat, lightning, module

pytestmark = [pytest.mark.slow, QUIET]
ROOT = Path(__file__).resolve().parents[3]


def saving(folder, every=1, **options):
    """Settings of a Trainer that keeps its checkpoints."""
    kept = lightning.pytorch.callbacks.ModelCheckpoint(
        dirpath=folder / "kept", every_n_train_steps=every, save_last=True, **options
    )
    return {"callbacks": [kept], "enable_checkpointing": True}


@pytest.mark.parametrize("step", [3, 4, 5, 8])
@pytest.mark.parametrize("parts", [1, 2])
def test_it_goes_on_bit_for_bit(tmp_path, step, parts):
    options = {"batch": 10 // parts, "accumulate_grad_batches": parts, "validate": True}
    whole, first = fitted(tmp_path, net=module(dropout=0.3), **saving(tmp_path, save_top_k=-1), **options)
    file = next((tmp_path / "kept").glob(f"*step={step}.ckpt"))
    again, trainer = fitted(tmp_path, net=module(dropout=0.3, rate=0.5), ckpt_path=file, **options)
    assert trainer.global_step == trainer.strategy.engine.releases == 12
    assert trainer.current_epoch == first.current_epoch == 3
    assert torch.equal(flat(again), flat(whole))
    rates = [one.lr_scheduler_configs[0].scheduler.get_last_lr() for one in (first, trainer)]
    assert rates[0] == pytest.approx(rates[1])


def test_last_goes_on_where_it_is_kept_and_under_fresh_keys_too(tmp_path):
    privacy = Privacy(**GUARANTEE, poisson_sampling=False, stop_at_epsilon=3.0)
    _, first = fitted(tmp_path, privacy=privacy, **saving(tmp_path))
    made = first.strategy.engine.releases
    privacy = Privacy(**GUARANTEE, poisson_sampling=False)
    _, trainer = fitted(tmp_path, privacy=privacy, ckpt_path="last", **saving(tmp_path))
    assert 0 < made < trainer.strategy.engine.releases == 12


def test_a_run_that_was_at_its_budget_makes_no_step(tmp_path):
    privacy = Privacy(**KEYS, **GUARANTEE, poisson_sampling=False, stop_at_epsilon=3.0)
    _, first = fitted(tmp_path, privacy=privacy, **saving(tmp_path))
    _, trainer = fitted(tmp_path, privacy=privacy, ckpt_path=tmp_path / "kept" / "last.ckpt")
    assert trainer.strategy.engine.releases == first.strategy.engine.releases


def test_keys_are_beside_and_go_with_their_checkpoint(tmp_path):
    _, made = fitted(tmp_path, **saving(tmp_path, save_top_k=1))
    files = {path.name for path in (tmp_path / "kept").iterdir()}
    keys = {path.name for path in (tmp_path / "kept.private").glob("*.ckpt")}
    assert keys == {f"{name}.12.ckpt" for name in files}
    for name in files:
        whole = (tmp_path / "kept" / name).read_bytes()
        assert KEYS["noise_key"] not in whole and KEYS["sampling_key"] not in whole
        assert "epsilon" in torch.load(tmp_path / "kept" / name, weights_only=True)["privacy"]
    made.strategy.remove_checkpoint(tmp_path / "kept" / "last.ckpt")
    assert not list((tmp_path / "kept.private").glob("last*.ckpt"))


def test_a_checkpoint_without_its_keys_is_refused(tmp_path):
    fitted(tmp_path, **saving(tmp_path))
    for path in (tmp_path / "kept.private").glob("*.ckpt"):
        path.unlink()
    with pytest.raises(CheckpointError, match="has no keys"):
        fitted(tmp_path, ckpt_path=tmp_path / "kept" / "last.ckpt")


def test_a_save_that_breaks_off_leaves_a_pair(tmp_path, monkeypatch):
    """Between keys and checkpoint, last.ckpt is the old one, and its keys are there still."""
    io = lightning.pytorch.plugins.TorchCheckpointIO
    save = io.save_checkpoint

    def breaks(self, checkpoint, path, storage_options=None):
        if checkpoint["global_step"] == 6 and Path(path).name == "last.ckpt":
            raise KeyboardInterrupt
        save(self, checkpoint, path, storage_options)

    whole, _ = fitted(tmp_path / "whole")
    with monkeypatch.context() as patch:
        patch.setattr(io, "save_checkpoint", breaks)
        with pytest.raises((KeyboardInterrupt, SystemExit)):
            fitted(tmp_path, **saving(tmp_path, save_top_k=0))
    again, _ = fitted(tmp_path, ckpt_path=tmp_path / "kept" / "last.ckpt")
    assert torch.equal(flat(again), flat(whole))


@pytest.mark.skipif(not hasattr(signal, "SIGKILL"), reason="needs POSIX signals")
def test_a_killed_run_resumes_bit_for_bit(tmp_path):
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join([str(ROOT / "src"), str(ROOT)]),
        "OMP_NUM_THREADS": "1",
    }
    command = [sys.executable, "-m", "tests.trainers.lightning.killed", str(tmp_path)]
    started = {"cwd": ROOT, "env": environment, "text": True, "start_new_session": True}
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, **started)
    for line in process.stdout:
        if line.strip() == "release 5":
            break
    os.killpg(process.pid, signal.SIGKILL)
    process.communicate()
    assert process.returncode == -signal.SIGKILL
    done = subprocess.run(command, check=False, capture_output=True, timeout=200, **started)
    assert done.returncode == 0, done.stderr
    first = next(line for line in done.stdout.splitlines() if line.startswith("release"))
    assert 5 <= int(first.split()[1]) <= 8
    whole, _ = fitted(tmp_path / "whole", net=module(dropout=0.3))
    assert torch.equal(torch.load(tmp_path / "weights.pt", weights_only=True), flat(whole))
