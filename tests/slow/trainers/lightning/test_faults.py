"""Faults that a script may have around Lightning's Trainer: each is refused."""

import pytest
import torch

pytest.importorskip("lightning", reason="make test-all installs it")

from anechoic.errors import DesynchronizedError, GuaranteeError, MismatchError
from anechoic.trainers.lightning import PrivateStrategy
from tests.trainers import canaries
from tests.trainers.lightning.setting import QUIET, lightning

pytestmark = [pytest.mark.slow, QUIET]


class Network(lightning.LightningModule):
    def __init__(self):
        super().__init__()
        self.canaries = canaries.Canaries()

    def training_step(self, batch, batch_idx):
        return self.canaries(**batch)["loss"]

    def validation_step(self, batch, batch_idx):
        self.log("val_loss", self.canaries(**batch)["loss"])

    def configure_optimizers(self):
        return self.plain


def door(folder, kind=Network, strategy=PrivateStrategy):
    """(the watched run, its Trainer, fit)"""
    watched = canaries.Watched(kind())
    watched.model.__dict__["plain"] = watched.optimizer
    trainer = lightning.Trainer(
        max_epochs=canaries.STEPS // canaries.PASS,
        accumulate_grad_batches=2,
        strategy=strategy(canaries.privacy()),
        accelerator="cpu",
        devices=1,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        default_root_dir=str(folder),
    )

    def fit():
        data = torch.utils.data.DataLoader(canaries.Numbers(), batch_size=canaries.BATCH // 2, shuffle=True)
        held_out = torch.utils.data.DataLoader(canaries.Numbers(), batch_size=canaries.BATCH)
        trainer.fit(watched.model, data, held_out)

    return watched, trainer, fit


class DropsPart(PrivateStrategy):
    """The last part of a batch is not trained on."""

    def backward(self, closure_loss, optimizer, *_, **__):
        self._begun.module(next(iter(self._begun.parts(self._in_hand[0])))).backward()
        return closure_loss


class OverTheBatch(PrivateStrategy):
    """A mean over the tokens of the batch, as Lightning takes it: not of single rows."""

    def backward(self, closure_loss, optimizer, *_, **__):
        for part in self._begun.parts(self._in_hand[0]):
            canaries.token_mean(self.lightning_module.canaries, part).backward()
        return closure_loss


class EvaluationTrains(Network):
    def validation_step(self, batch, batch_idx):
        self.canaries.weight.data += 1e-3


REFUSED = (DesynchronizedError, GuaranteeError, MismatchError)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"strategy": DropsPart}, "taken for a batch of its own"),
        ({"strategy": OverTheBatch}, "no gradient reached"),
        ({"kind": EvaluationTrains}, "changed by something else than"),
    ],
)
def test_a_fault_of_a_script_is_refused(tmp_path, options, words):
    watched, _, fit = door(tmp_path, **options)
    with pytest.raises(REFUSED, match=words):
        fit()
    assert len(watched.rows) < canaries.STEPS
