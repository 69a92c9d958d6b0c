"""fit(ckpt_path=…) goes on bit for bit, from a checkpoint and its keys, which are in a file of their own."""

from pathlib import Path

import pytest
import torch

from anechoic.errors import MismatchError
from tests.trainers.lightning.setting import KEYS, QUIET, Module, fitted, flat, lightning, module

pytestmark = [pytest.mark.slow, QUIET]


class Stops(lightning.pytorch.Callback):
    """Ends a fit() at a step, as if it had been killed there."""

    def __init__(self, at):
        self._at = at

    def on_train_batch_end(self, trainer, *_):
        trainer.should_stop = trainer.should_stop or trainer.global_step == self._at


def saving(folder, every=1, stop=None, **options):
    """Settings of a Trainer that keeps its checkpoints."""
    kept = lightning.pytorch.callbacks.ModelCheckpoint(
        dirpath=folder / "kept", every_n_train_steps=every, **({"save_last": True} | options)
    )
    return {"callbacks": [kept, Stops(stop)], "enable_checkpointing": True}


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


@pytest.mark.parametrize("steps", [(4, 6), (8, 9), (3, 4, 7, 8, 11)])
@pytest.mark.parametrize("validate", [False, True])
def test_it_goes_on_and_on(tmp_path, steps, validate):
    """What a resumed run saves is as good: Lightning counts no new epoch where it went on from an end."""
    whole, _ = fitted(tmp_path / "whole", net=module(dropout=0.3), validate=validate)
    file = None
    for stop in (*steps, 12):
        again, trainer = fitted(
            tmp_path, net=module(dropout=0.3), ckpt_path=file, validate=validate,
            **saving(tmp_path, save_top_k=-1, stop=stop),
        )  # fmt: skip
        assert trainer.global_step == stop
        (file,) = (tmp_path / "kept").glob(f"*step={stop}.ckpt")
    assert trainer.current_epoch == 3
    assert torch.equal(flat(again), flat(whole))


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


def test_a_step_that_raises_is_made_again_from_its_checkpoint(tmp_path):
    class Fails(Module):
        def training_step(self, batch, batch_idx):
            if self.current_epoch == 1 and batch_idx == 2 and self.fails:
                raise KeyError("mine")
            return super().training_step(batch, batch_idx)

    kept = lightning.pytorch.callbacks.OnExceptionCheckpoint(tmp_path / "kept")
    options = {"callbacks": [kept], "enable_checkpointing": True}
    net = module(Fails)
    net.fails = True
    with pytest.raises(KeyError, match="mine"):
        fitted(tmp_path, net=net, batch=5, accumulate_grad_batches=2, **options)
    net = module(Fails)
    net.fails = False
    file = tmp_path / "kept" / "on_exception.ckpt"
    _, trainer = fitted(tmp_path, net=net, batch=5, accumulate_grad_batches=2, ckpt_path=file)
    whole, _ = fitted(tmp_path / "whole", batch=5, accumulate_grad_batches=2)
    assert trainer.global_step == trainer.strategy.engine.releases == 12
    assert torch.equal(flat(net), flat(whole))


def test_keys_of_a_link_are_those_of_its_file(tmp_path):
    whole, _ = fitted(tmp_path, **saving(tmp_path, every=5, save_last="link", save_top_k=-1))
    assert (tmp_path / "kept" / "last.ckpt").is_symlink()
    again, trainer = fitted(tmp_path, ckpt_path=tmp_path / "kept" / "last.ckpt")
    assert trainer.strategy.engine.releases == 12
    assert torch.equal(flat(again), flat(whole))


class Cycle(Module):
    """A schedule by steps, whose length is the Trainer's estimate."""

    def configure_optimizers(self):
        optimizer = torch.optim.AdamW(self.head.parameters(), lr=0.1)
        steps = self.trainer.estimated_stepping_batches
        scheduler = torch.optim.lr_scheduler.OneCycleLR(optimizer, max_lr=0.1, total_steps=steps)
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": scheduler, "interval": "step"}}


@pytest.mark.parametrize("at", [2, 4, 10])
def test_a_checkpoint_of_a_validation_within_an_epoch_goes_on(tmp_path, at):
    kept = lightning.pytorch.callbacks.ModelCheckpoint(
        dirpath=tmp_path / "kept", monitor="val_loss", save_top_k=-1
    )
    options = {"validate": True, "val_check_interval": 2, "max_epochs": 3}
    whole, _ = fitted(tmp_path, net=module(Cycle), callbacks=[kept], enable_checkpointing=True, **options)
    (file,) = (tmp_path / "kept").glob(f"*step={at}.ckpt")
    again, trainer = fitted(tmp_path, net=module(Cycle), ckpt_path=file, **options)
    assert trainer.global_step == trainer.strategy.engine.mechanism.steps == 12
    assert torch.equal(flat(again), flat(whole))


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


def test_more_epochs_are_refused_in_words_of_the_trainer(tmp_path):
    fitted(tmp_path, max_epochs=2, **saving(tmp_path))
    file = tmp_path / "kept" / "last.ckpt"
    with pytest.raises(MismatchError, match=r"last.ckpt.8 has 8 releases.*would make 16: .*charge=") as found:
        fitted(tmp_path, ckpt_path=file, max_epochs=4)
    assert "steps=" not in str(found.value)
