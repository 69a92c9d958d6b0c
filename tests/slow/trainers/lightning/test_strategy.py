"""A private run inside Lightning is the bare loop's, bit for bit, and evaluation trains nothing."""

import math

import pytest
import torch
from torch import nn

pytest.importorskip("lightning", reason="make test-all installs it")

from anechoic.trainers import Privacy
from tests.trainers.lightning.setting import (
    BATCH,
    EPOCHS,
    GUARANTEE,
    KEYS,
    QUIET,
    ROWS,
    Module,
    as_in_another_process,
    bare,
    fitted,
    flat,
    lightning,
    loader,
    module,
)
from tests.trainers.lightning.setting import trainer as made

pytestmark = [pytest.mark.slow, QUIET]


class Weighted(Module):
    """Divides by the weights of whatever batch it is given; weights are powers of 2, which cancel exactly."""

    def training_step(self, batch, batch_idx):
        x, y = batch
        weights = 2.0 ** (x[:, 0] > 0).float()
        losses = nn.functional.cross_entropy(self(x), y, reduction="none")
        return (weights * losses).sum() / weights.sum()


#: How the module is made, what fit() is given, and what the bare loop.
RUNS = {
    "no schedule": ({"schedule": False}, {"validate": True}, {}),
    "a schedule": ({}, {"validate": True}, {}),
    "parts of a batch": ({}, {"batch": BATCH // 2, "accumulate_grad_batches": 2}, {"at_once": BATCH // 2}),
    "bfloat16": ({}, {"precision": "bf16-mixed"}, {"dtype": torch.bfloat16}),
    "dropout": ({"dropout": 0.5}, {"validate": True}, {"whole": True}),
    "a mean over the batch is one over the row": ({"kind": Weighted}, {}, {}),
}


@pytest.mark.parametrize("name", RUNS)
def test_the_run_is_that_of_a_bare_loop(tmp_path, name):
    made, given, plain = RUNS[name]
    net, trainer = fitted(tmp_path, net=module(**made), **given)
    assert trainer.global_step == trainer.strategy.engine.releases == EPOCHS * ROWS // BATCH
    same = module(**{key: value for key, value in made.items() if key != "kind"})
    assert torch.equal(flat(net), bare(same, **plain))
    assert "dtype" not in plain or not torch.equal(flat(net), bare(module()))


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


def test_data_come_from_a_datamodule_too(tmp_path):
    class Data(lightning.LightningDataModule):
        def train_dataloader(self):
            return loader()

        def val_dataloader(self):
            return loader(shuffle=False)

        def on_after_batch_transfer(self, batch, dataloader_idx):
            return 2.0 * batch[0], batch[1]

    class Doubled(Module):
        def forward(self, x):
            return super().forward(2.0 * x)

    as_in_another_process()
    net = module()
    made(tmp_path).fit(net, datamodule=Data())
    assert torch.equal(flat(net), bare(module(Doubled)))


def test_hooks_of_a_step_are_called_without_its_rows(tmp_path):
    seen = []

    class Hooked(Module):
        def on_before_backward(self, loss):
            seen.append(float(loss))

        def on_after_backward(self):
            seen.append([p.grad is None or not p.grad.any() for p in self.head.parameters()])

        def on_train_batch_end(self, outputs, batch, batch_idx):
            seen.append((float(outputs["loss"]), batch_idx))
            with pytest.raises(TypeError):
                batch[0]

    net, _ = fitted(tmp_path, net=module(Hooked), max_epochs=1)
    assert seen == [one for i in range(4) for one in (0.0, [True, True], (0.0, i))]
    assert torch.equal(flat(net), bare(module(), epochs=1))


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


#: Lightning's epochs are then of two releases, where one over rows has 4.
OF_USERS = {"unit": "user", "unit_ids": [f"user{i % 15}" for i in range(ROWS)]}


@pytest.mark.parametrize("fixed", [True, False])
@pytest.mark.parametrize("parts", [1, 2])
def test_an_epoch_is_a_pass_over_the_users(tmp_path, fixed, parts):
    privacy = Privacy(**KEYS, **GUARANTEE, **OF_USERS, poisson_sampling=not fixed)
    options = {"batch": BATCH // parts, "accumulate_grad_batches": parts}
    _, trainer = fitted(tmp_path, privacy=privacy, max_epochs=3, **options)
    engine = trainer.strategy.engine
    assert trainer.global_step == engine.releases == engine.mechanism.steps == 3 * 2
    assert trainer.current_epoch == 3
    assert engine.releases == 3 * len(trainer.strategy._begun.batches)
