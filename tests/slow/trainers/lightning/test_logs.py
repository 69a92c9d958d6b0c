"""What is written while a private run trains inside Lightning is noised or public."""

import logging

import pytest
import torch

pytest.importorskip("lightning", reason="make test-all installs it")

from anechoic.errors import UnsupportedError
from anechoic.trainers import Privacy
from tests.trainers.lightning.setting import (
    BATCH,
    EPOCHS,
    GUARANTEE,
    KEYS,
    QUIET,
    ROWS,
    Module,
    bare,
    fitted,
    flat,
    lightning,
    module,
)

pytestmark = [pytest.mark.slow, QUIET]
torchmetrics = pytest.importorskip("torchmetrics")
STEPS = EPOCHS * ROWS // BATCH


class Recorder(lightning.pytorch.loggers.logger.Logger):
    """Everything that is logged."""

    name, version = "recorder", 0

    def __init__(self):
        super().__init__()
        self.lines = []

    def log_metrics(self, metrics, step=None):
        self.lines.append((step, metrics))

    def log_hyperparams(self, *_, **__):
        pass

    @property
    def names(self):
        return {name for _, line in self.lines for name in line}


PUBLIC = {"epoch", "epsilon", "noise_to_signal"}


class Talks(Module):
    """Says what it can of its rows, everywhere."""

    def __init__(self):
        super().__init__()
        self.accuracy = torchmetrics.Accuracy("multiclass", num_classes=2)
        self.several = torchmetrics.MetricCollection(
            {"a": torchmetrics.Accuracy("multiclass", num_classes=2)}
        )

    def training_step(self, batch, batch_idx):
        x, y = batch
        out = self(x)
        self.log("accuracy", self.accuracy(out, y))
        self.log_dict(self.several(out, y), on_epoch=True)
        self.accuracy.update(out, y)
        self.log("whole", self.accuracy)
        self.logger.log_metrics({"direct": 1.0})
        return super().training_step(batch, batch_idx)

    def on_train_batch_end(self, outputs, batch, batch_idx):
        self.log("outputs", outputs["loss"])
        self.log("rows", float(len(batch.first[0])), on_step=True)

    def on_train_epoch_end(self):
        self.log("epoch_accuracy", 1.0)


class Gossip(lightning.pytorch.Callback):
    def on_train_batch_end(self, trainer, pl_module, outputs, batch, batch_idx):
        self.log("gossip", float(batch.first[0].sum()))


def test_nothing_private_is_logged(tmp_path, caplog):
    """One record is another, and all that is written stays as it was, but for what was released."""
    written = []
    for changed in (None, 7):
        recorder = Recorder()
        with caplog.at_level(logging.WARNING, logger="anechoic"):
            _, trainer = fitted(tmp_path / str(changed), changed=changed, logger=recorder)
        written.append(
            [
                (step, {k: v for k, v in line.items() if k != "noise_to_signal"})
                for step, line in recorder.lines
            ]
        )
        assert recorder.names == PUBLIC
        assert set(trainer.callback_metrics) == set(trainer.progress_bar_metrics) == PUBLIC - {"epoch"}
        assert {len(line) for _, line in recorder.lines} == {3}
    assert written[0] == written[1]
    assert len(written[0]) == STEPS
    said = [record.message for record in caplog.records if "is dropped" in record.message]
    assert len(said) == 4  # once a name, in each of the two runs


def test_whoever_logs_and_wherever_it_is_dropped(tmp_path, caplog):
    recorder = Recorder()
    with caplog.at_level(logging.WARNING, logger="anechoic"):
        net, trainer = fitted(
            tmp_path, net=module(Talks), logger=recorder, callbacks=[Gossip()], validate=True
        )
    assert recorder.names == PUBLIC | {"val_loss"}
    assert set(trainer.callback_metrics) == {"epsilon", "noise_to_signal", "val_loss"}
    dropped = {r.message.split(",")[0] for r in caplog.records if "is dropped" in r.message}
    names = "accuracy a whole outputs rows epoch_accuracy gossip train_loss largest"
    assert dropped == set(names.split())
    assert torch.equal(flat(net), bare(module()))
    assert "log" not in vars(net)  # the module is what it was
    assert net.accuracy._update_count == 0


@pytest.mark.parametrize("read", [lambda loss: loss.detach(), lambda loss: {"loss": loss.detach()}])
def test_losses_that_are_gathered_for_the_end_of_an_epoch_are_refused(tmp_path, read):
    class Gathers(Module):
        def __init__(self):
            super().__init__()
            self.losses = []

        def training_step(self, batch, batch_idx):
            loss = super().training_step(batch, batch_idx)["loss"]
            self.losses.append(read(loss))
            return loss

    with pytest.raises(UnsupportedError, match="losses gathers what training_step computed"):
        fitted(tmp_path, net=module(Gathers))


def test_how_many_rows_a_drawn_batch_has_is_not_told(tmp_path):
    """Two runs whose batches are of other sizes log the same but for the ratio of noise to signal."""
    lines = []
    for place, key in enumerate((bytes(32), bytes(range(32, 64)))):
        recorder = Recorder()
        keys = KEYS | {"sampling_key": key}
        privacy = Privacy(**keys, **GUARANTEE, mechanism="identity", poisson_sampling=True)
        _, trainer = fitted(tmp_path / str(place), privacy=privacy, logger=recorder)
        feed = trainer.strategy._begun.batches.loader.feed.batches
        kept = [(step, line["epsilon"], sorted(line)) for step, line in recorder.lines]
        lines.append(([len(feed.batch(t)) for t in range(STEPS)], kept))
    assert lines[0][0] != lines[1][0]
    assert lines[0][1] == lines[1][1]


def test_it_says_how_long_an_epoch_is_and_no_more(tmp_path):
    """Loops, callbacks and schedulers in a checkpoint are the same whatever the rows are."""
    states = []
    for changed in (None, 7):
        folder = tmp_path / str(changed)
        kept = lightning.pytorch.callbacks.ModelCheckpoint(dirpath=folder / "kept", every_n_train_steps=6)
        fitted(folder, changed=changed, callbacks=[kept], enable_checkpointing=True)
        (file,) = (folder / "kept").glob("*step=12.ckpt")
        state = torch.load(file, weights_only=True)
        for group in state["optimizer_states"][0]["param_groups"]:
            group.pop("anechoic", None)
        states.append(state)
    released = {"state_dict", "optimizer_states", "callbacks"}  # callbacks hold the folder
    assert states[0].keys() == states[1].keys()
    for name in states[0].keys() - released:
        assert states[0][name] == states[1][name], name
    assert not torch.equal(*(state["state_dict"]["head.weight"] for state in states))
