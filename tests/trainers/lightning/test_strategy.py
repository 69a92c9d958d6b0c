"""A private run inside Lightning is the bare loop's, bit for bit, and writes nothing that is not noised."""

import logging
import math

import pytest
import torch

from anechoic.trainers import Privacy
from anechoic.trainers.row_loss import RowLoss
from anechoic.trainers.run import TrainerRun
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
    loader,
    module,
)

pytestmark = [pytest.mark.slow, QUIET]


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


@pytest.mark.parametrize("schedule", [False, True])
def test_the_run_is_that_of_a_bare_loop(tmp_path, schedule):
    net, trainer = fitted(tmp_path, net=module(schedule=schedule), validate=True)
    assert trainer.global_step == trainer.strategy.engine.releases == EPOCHS * ROWS // BATCH
    assert torch.equal(flat(net), bare(module(schedule=schedule)))


def test_parts_of_a_batch_make_one_release(tmp_path):
    net, trainer = fitted(tmp_path, batch=BATCH // 2, accumulate_grad_batches=2)
    assert trainer.global_step == EPOCHS * ROWS // BATCH
    assert trainer.accumulate_grad_batches == 2
    assert torch.equal(flat(net), bare(module(), at_once=BATCH // 2))


def test_bfloat16_is_that_of_the_bare_loop(tmp_path):
    net, _ = fitted(tmp_path, precision="bf16-mixed")
    assert torch.equal(flat(net), bare(module(), dtype=torch.bfloat16))
    assert not torch.equal(flat(net), bare(module()))


def test_dropout_is_that_of_the_bare_loop(tmp_path):
    net, _ = fitted(tmp_path, net=module(dropout=0.5), validate=True)
    assert torch.equal(flat(net), bare(module(dropout=0.5), whole=True))


def test_batches_may_be_drawn_at_random_and_be_empty(tmp_path):
    privacy = Privacy(**KEYS, **GUARANTEE, mechanism="identity")
    net, trainer = fitted(tmp_path, batch=1, privacy=privacy, max_epochs=1)
    batches = trainer.strategy._begun.batches.loader.feed.batches
    assert {0, 2} <= {len(batches.batch(t)) for t in range(ROWS)}
    options = {"poisson_sampling": True, "mechanism": "identity"}
    assert torch.equal(flat(net), bare(module(), batch=1, epochs=1, **options))


def test_frozen_weights_stay_and_evaluation_trains_nothing(tmp_path):
    before = module()
    net, trainer = fitted(tmp_path, validate=True)
    assert torch.equal(net.frozen.weight, before.frozen.weight)
    assert not torch.equal(net.head.weight, before.head.weight)
    trained = flat(net)
    assert math.isfinite(trainer.validate(net, loader(shuffle=False), verbose=False)[0]["val_loss"])
    trainer.test(net, loader(shuffle=False), verbose=False)
    assert trainer.predict(net, loader(shuffle=False))[0].shape == (BATCH, 2)
    assert torch.equal(flat(net), trained)
    assert trainer.strategy.engine.releases == trainer.strategy.engine.mechanism.steps


def test_layers_in_eval_mode_stay_so(tmp_path):
    net = module(dropout=0.5)
    net.dropout.eval()
    net, _ = fitted(tmp_path, net=net)
    assert not net.dropout.training
    assert torch.equal(flat(net), bare(module()))


def test_nothing_private_is_logged(tmp_path, caplog):
    """One record is another, and all that is written stays as it was, but for what was released."""
    written = []
    for changed in (None, 7):
        recorder = Recorder()
        with caplog.at_level(logging.WARNING, logger="anechoic"):
            _, trainer = fitted(tmp_path / str(changed), changed=changed, logger=recorder)
        lines = [
            (step, {k: v for k, v in line.items() if k != "noise_to_signal"}) for step, line in recorder.lines
        ]
        assert all(set(line) == {"epoch", "epsilon"} for _, line in lines)
        assert set(trainer.callback_metrics) == {"epsilon", "noise_to_signal"}
        written.append(lines)
    assert written[0] == written[1]
    assert len(written[0]) == EPOCHS * ROWS // BATCH
    said = [record.message for record in caplog.records if "is dropped" in record.message]
    assert len(said) == 4  # once a name, in each of the two runs


def test_a_logger_cannot_be_reached_from_a_training_step(tmp_path):
    class Writes(Module):
        def training_step(self, batch, batch_idx):
            assert self.logger is None
            return super().training_step(batch, batch_idx)

    fitted(tmp_path, net=module(Writes), max_epochs=1, logger=Recorder())


def test_it_stops_before_the_budget_is_exceeded(tmp_path):
    most = 3.0
    privacy = Privacy(**KEYS, **GUARANTEE, poisson_sampling=False, stop_at_epsilon=most)
    _, trainer = fitted(tmp_path, privacy=privacy)
    engine = trainer.strategy.engine
    assert 0 < engine.releases < engine.mechanism.steps
    assert engine.get_epsilon(GUARANTEE["target_delta"]) <= most
    history = engine._current().history
    assert history.epsilon(GUARANTEE["target_delta"], engine.releases + 1) > most


@pytest.mark.parametrize(
    ("options", "steps"),
    [
        ({"max_steps": 5, "max_epochs": -1}, 5),
        ({"limit_train_batches": 3}, 9),
        ({"limit_train_batches": 0.5}, 6),
        ({"fast_dev_run": True}, 1),
    ],
)
def test_limits_are_those_of_the_mechanism(tmp_path, options, steps):
    _, trainer = fitted(tmp_path, **options)
    assert trainer.global_step == trainer.strategy.engine.releases == steps
    assert trainer.strategy.engine.mechanism.steps == steps


def test_limits_count_parts_as_lightning_does(tmp_path):
    options = {"batch": BATCH // 2, "accumulate_grad_batches": 2, "validate": True}
    _, trainer = fitted(tmp_path, limit_train_batches=4, val_check_interval=2, **options)
    assert trainer.global_step == EPOCHS * 2
    assert (trainer.limit_train_batches, trainer.val_check_interval) == (4, 2)


# -- the tests above see what they are there for ----------------------------------------------------


def released_twice(monkeypatch):
    parts = TrainerRun.parts

    def twice(self, batch):
        for part in parts(self, batch):
            yield part
            if self.optimizer.ledger.in_hand is not None and self.optimizer.ledger.in_hand.last:
                yield part

    monkeypatch.setattr(TrainerRun, "parts", twice)


def last_rows_dropped(monkeypatch):
    forward = RowLoss.forward
    monkeypatch.setattr(RowLoss, "forward", lambda self, batch: forward(self, batch) * (batch[0].sum() > 0))


def frozen_moves(monkeypatch):
    released = TrainerRun.released

    def moving(self):
        with torch.no_grad():
            self.module.get_parameter("_module.model.frozen.weight").add_(1.0)
        return released(self)

    monkeypatch.setattr(TrainerRun, "released", moving)


def evaluation_trains(monkeypatch):
    def step(self, batch, batch_idx):
        with torch.no_grad():
            self.head.weight.add_(1.0)

    monkeypatch.setattr(Module, "validation_step", step)


@pytest.mark.parametrize("fault", [released_twice, last_rows_dropped, frozen_moves, evaluation_trains])
def test_faults_are_seen(tmp_path, monkeypatch, fault):
    right = bare(module(), at_once=BATCH // 2)
    fault(monkeypatch)
    try:
        net, _ = fitted(tmp_path, batch=BATCH // 2, accumulate_grad_batches=2, validate=True)
    except Exception as error:  # refused before anything is released is as good
        assert type(error).__module__ == "anechoic.errors"
    else:
        assert not torch.equal(flat(net), right)
