"""A LightningModule, its data, a Trainer around it, and the same private run by a bare loop."""

import warnings

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from anechoic.torch import PrivacyEngine
from anechoic.trainers import Privacy
from anechoic.trainers.run import RowLoss
from tests.trainers.setting import KEYS, as_in_another_process, flat

lightning = pytest.importorskip("lightning")
from anechoic.trainers.lightning import PrivateStrategy  # noqa: E402

ROWS, BATCH, EPOCHS = 40, 10, 3
GUARANTEE = {"noise_multiplier": 0.7, "max_grad_norm": 0.5, "target_delta": 1e-3}
#: What Lightning says of small data, of the number of workers and of loggers that are missing.
QUIET = pytest.mark.filterwarnings("ignore:::lightning", "ignore:.*treespec.*")


class Module(lightning.LightningModule):
    """Whose step mixes rows, logs them, and trains some weights; the first layer is frozen."""

    def __init__(self, rate=0.5, schedule=True, dropout=0.0):
        super().__init__()
        self.save_hyperparameters()
        self.frozen, self.head = nn.Linear(4, 6), nn.Linear(6, 2)
        self.frozen.requires_grad_(requires_grad=False)
        self.dropout = nn.Dropout(dropout)

    def forward(self, x):
        return self.head(self.dropout(self.frozen(x).tanh()))

    def training_step(self, batch, batch_idx):
        x, y = batch
        loss = nn.functional.cross_entropy(self(x), y)
        self.log("train_loss", loss, prog_bar=True, on_epoch=True)
        self.log_dict({"largest": x.max()})
        return {"loss": loss}

    def validation_step(self, batch, batch_idx):
        x, y = batch
        self.log("val_loss", nn.functional.cross_entropy(self(x), y))

    test_step = validation_step

    def predict_step(self, batch, batch_idx):
        return self(batch[0])

    def configure_optimizers(self):
        optimizer = torch.optim.SGD(self.head.parameters(), lr=self.hparams.rate, momentum=0.5)
        if not self.hparams.schedule:
            return optimizer
        return [optimizer], [torch.optim.lr_scheduler.StepLR(optimizer, 1, gamma=0.5)]


def data(changed=None):
    """Rows of two classes; `changed` is the number of one that is replaced."""
    drawn = torch.Generator().manual_seed(5)
    x = torch.randn(ROWS, 4, generator=drawn)
    y = (x[:, 0] > 0).long()
    if changed is not None:
        x[changed], y[changed] = 9.0, 1 - y[changed]
    return TensorDataset(x, y)


def loader(batch=BATCH, changed=None, *, shuffle=True):
    return DataLoader(data(changed), batch_size=batch, shuffle=shuffle)


def module(kind=Module, **options):
    torch.manual_seed(3)
    return kind(**options)


def trainer(folder, privacy=None, **options):
    settings = {
        "max_epochs": EPOCHS,
        "accelerator": "cpu",
        "devices": 1,
        "logger": False,
        "enable_checkpointing": False,
        "enable_progress_bar": False,
        "enable_model_summary": False,
        "default_root_dir": str(folder),
        "log_every_n_steps": 1,
    }
    privacy = privacy or Privacy(**KEYS, **GUARANTEE, poisson_sampling=False)
    return lightning.Trainer(strategy=PrivateStrategy(privacy), **(settings | options))


def fitted(
    folder, *, net=None, batch=BATCH, changed=None, privacy=None, ckpt_path=None, validate=False, **options
):
    """(the module, its trainer) after fit()."""
    as_in_another_process()
    net = module() if net is None else net
    made = trainer(folder, privacy, **options)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", category=UserWarning)
        made.fit(
            net, loader(batch, changed), loader(shuffle=False) if validate else None, ckpt_path=ckpt_path
        )
    return net, made


def bare(net, *, batch=BATCH, epochs=EPOCHS, at_once=None, dtype=None, whole=False, **options):
    """The weights of the run by a loop that everybody writes, a mean over the rows' losses.

    Args:
        whole: compute the loss within the rows, which then draw the dropout of a whole training step.
    """
    as_in_another_process()
    engine = PrivacyEngine(**KEYS)
    optimizer = net.configure_optimizers()
    schedulers = []
    if isinstance(optimizer, tuple):
        (optimizer,), schedulers = optimizer
    guarantee = GUARANTEE | {"poisson_sampling": False} | options
    if schedulers:
        guarantee |= {"scheduler": schedulers[0], "scheduler_interval": "epoch"}
    private, stepped, batches = engine.make_private(
        module=(RowLoss(net, of_a_row) if whole else net).train(),
        optimizer=optimizer,
        data_loader=loader(batch),
        epochs=epochs,
        **guarantee,
    )
    if at_once is not None:
        batches = batches.in_chunks(at_once)
    for _ in range(epochs):
        for x, y in batches:
            stepped.zero_grad()
            with torch.autocast(
                "cpu", dtype=dtype or torch.bfloat16, enabled=dtype is not None, cache_enabled=False
            ):
                loss = private((x, y)) if whole else nn.functional.cross_entropy(private(x), y)
            loss.backward()
            stepped.step()
        for one in schedulers:
            one.step()
    return flat(net)


def of_a_row(net, batch):
    return nn.functional.cross_entropy(net(batch[0]), batch[1])
