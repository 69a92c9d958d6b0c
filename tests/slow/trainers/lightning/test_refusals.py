"""What cannot be private inside Lightning is refused by its name, before anything is released."""

import pytest
import torch
from torch.utils.data import DataLoader

from anechoic.errors import UnsupportedError
from anechoic.trainers import Privacy
from tests.trainers.lightning.setting import (
    BATCH,
    GUARANTEE,
    KEYS,
    QUIET,
    Module,
    fitted,
    lightning,
    loader,
    module,
    trainer,
)

pytestmark = [pytest.mark.slow, QUIET]
callbacks = lightning.pytorch.callbacks


class Manual(Module):
    def __init__(self):
        super().__init__()
        self.automatic_optimization = False


class Several(Module):
    def configure_optimizers(self):
        return [torch.optim.SGD([p], lr=0.1) for p in self.head.parameters()]


class Backward(Module):
    def backward(self, loss):
        (2 * loss).backward()


class Clips(Module):
    def configure_gradient_clipping(self, *_, **__):
        pass


class Moves(Module):
    def on_before_batch_transfer(self, batch, dataloader_idx):
        return batch


class Skips(Module):
    def training_step(self, batch, batch_idx):
        return None


def compiled_in_place(net):
    net.head.compile()
    return net


def compiled_part(net):
    net.head = torch.compile(net.head)
    return net


SCALER = lightning.pytorch.plugins.MixedPrecision("16-mixed", "cpu", scaler=torch.amp.GradScaler("cpu"))
STOPS = Privacy(**KEYS, **GUARANTEE, poisson_sampling=False, stop_at_epsilon=3.0)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"gradient_clip_val": 1.0}, r"gradient_clip_val=1.0.*max_grad_norm"),
        ({"reload_dataloaders_every_n_epochs": 1}, "reload_dataloaders_every_n_epochs=1"),
        ({"overfit_batches": 2}, "overfit_batches=2.*Subset"),
        ({"devices": 2}, "gives 2: .*devices=1"),
        ({"precision": "bf16-true"}, "precision='bf16-true'"),
        ({"max_epochs": -1}, "max_epochs or max_steps"),
        ({"limit_train_batches": 0}, "nothing to train"),
        ({"accumulate_grad_batches": 2, "limit_train_batches": 3}, "limit_train_batches=3.*multiple"),
        ({"callbacks": [callbacks.GradientAccumulationScheduler({0: 2})]}, "GradientAccumulationScheduler"),
        ({"callbacks": [callbacks.LearningRateFinder()]}, "LearningRateFinder"),
        ({"callbacks": [callbacks.StochasticWeightAveraging(0.1)]}, "StochasticWeightAveraging"),
        ({"plugins": [SCALER]}, "16-mixed.*GradScaler.*bf16-mixed"),
        ({"privacy": STOPS, "min_epochs": 2}, "beyond stop_at_epsilon"),
        ({"net": lambda: module(Manual)}, "automatic_optimization=False"),
        ({"net": lambda: module(Several)}, "several optimizers"),
        ({"net": lambda: module(Backward)}, "Backward has backward, which is not called"),
        ({"net": lambda: module(Clips)}, "configure_gradient_clipping"),
        ({"net": lambda: module(Moves)}, "on_before_batch_transfer"),
        ({"net": lambda: module(Skips)}, "without a loss"),
        ({"net": lambda: torch.compile(module())}, "torch.compile"),
        ({"net": lambda: compiled_part(module())}, "torch.compile"),
        ({"net": lambda: compiled_in_place(module())}, "torch.compile"),
    ],
)
def test_what_cannot_be_private_is_named(tmp_path, options, words):
    net = options.get("net", module)()
    with pytest.raises(UnsupportedError, match=words):
        fitted(tmp_path, **{**options, "net": net})


def test_what_was_refused_leaves_trainer_and_module_as_they_were(tmp_path):
    class Fails(Module):
        def configure_optimizers(self):
            raise KeyError("mine")

    net = module(Fails)
    made = trainer(tmp_path, accumulate_grad_batches=2)
    with pytest.raises(KeyError, match="mine"):
        made.fit(net, loader(BATCH // 2))
    assert made.accumulate_grad_batches == 2
    assert "log" not in vars(net)


@pytest.mark.parametrize("data", [[1, 2], {"a": DataLoader([1]), "b": DataLoader([1])}])
def test_other_data_than_one_loader(tmp_path, data):
    with pytest.raises(UnsupportedError, match="one torch.utils.data.DataLoader"):
        trainer(tmp_path).fit(module(), data)


def test_a_second_fit(tmp_path):
    net, made = fitted(tmp_path, max_epochs=1)
    with pytest.raises(UnsupportedError, match="fit.. was called twice"):
        made.fit(net, loader())


def test_other_settings_than_privacy():
    from anechoic.trainers.lightning import PrivateStrategy

    with pytest.raises(TypeError, match="privacy is a dict"):
        PrivateStrategy({})
