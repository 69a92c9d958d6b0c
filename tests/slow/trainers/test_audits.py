"""Audits of canaries through every framework, and faults that a script may have there."""

import warnings

import pytest
import torch
from torch.utils.data import DataLoader

from anechoic.errors import DesynchronizedError, GuaranteeError, MismatchError
from anechoic.runs import ledger
from anechoic.torch import BatchMemoryManager, PrivacyEngine
from tests.floats import same_bits
from tests.trainers import canaries

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("default")]
REASON = "make test-all installs it"
EPOCHS, HALF = canaries.STEPS // canaries.PASS, canaries.BATCH // 2


# -- loops of one's own: (the watched run, train it, its batches) ---------------------------------


def accelerate(model, optimizer):
    made = pytest.importorskip("accelerate", reason=REASON).Accelerator(cpu=True)
    return (*made.prepare(model, optimizer), made.backward)


def fabric(model, optimizer):
    fabrics = pytest.importorskip("lightning.fabric", reason=REASON)
    made = fabrics.Fabric(accelerator="cpu", devices=1, precision="32-true")
    return (*made.setup(model, optimizer), made.backward)


def looped(prepared, wrapped=False):
    """`wrapped`: micro-batches are given the optimizer that the framework made."""
    watched = canaries.Watched(canaries.Canaries())
    model, private, loader = PrivacyEngine(**canaries.KEYS).make_private(
        module=watched.model,
        optimizer=watched.optimizer,
        data_loader=DataLoader(canaries.Numbers(), batch_size=canaries.BATCH, shuffle=True),
        mechanism=canaries.MECHANISM,
    )
    watched.batches, watched.loader = loader.feed.batches, loader
    model, optimizer, backward = prepared(model, private)
    given = optimizer if wrapped else private
    parts = BatchMemoryManager(data_loader=loader, max_physical_batch_size=HALF, optimizer=given).__enter__()

    def go():
        while len(watched.rows) < canaries.STEPS:
            for batch in parts:
                optimizer.zero_grad()
                backward(model(**batch)["loss"])
                optimizer.step()

    return watched, go, lambda: watched.batches


def by_accelerate(folder):
    return looped(accelerate)


def by_fabric(folder):
    return looped(fabric)


# -- trainers, whose scripts may have a fault -----------------------------------------------------


def by_lightning(folder, fault=None):
    lightning = pytest.importorskip("lightning", reason=REASON)
    from anechoic.trainers.lightning import PrivateStrategy

    class Network(lightning.LightningModule):
        def __init__(self):
            super().__init__()
            self.canaries = canaries.Canaries()

        def training_step(self, batch, batch_idx):
            return self.canaries(**batch)["loss"]

        def validation_step(self, batch, batch_idx):
            if fault == "evaluation trains":
                self.canaries.weight.data += 1e-3
            self.log("val_loss", self.canaries(**batch)["loss"])

        def configure_optimizers(self):
            return self.plain

    class Faulty(PrivateStrategy):
        def backward(self, closure_loss, optimizer, *_, **__):
            broken(self._begun, self._in_hand[0], self.lightning_module.canaries, fault)
            return closure_loss

    watched = canaries.Watched(Network())
    watched.model.__dict__["plain"] = watched.optimizer
    kind = Faulty if fault in BROKEN else PrivateStrategy
    trainer = lightning.Trainer(
        max_epochs=EPOCHS, accumulate_grad_batches=2, strategy=kind(canaries.privacy()), accelerator="cpu",
        devices=1, logger=False, enable_checkpointing=False, enable_progress_bar=False,
        enable_model_summary=False, default_root_dir=str(folder),
    )  # fmt: skip

    def go():
        data = DataLoader(canaries.Numbers(), batch_size=HALF, shuffle=True)
        trainer.fit(watched.model, data, DataLoader(canaries.Numbers(), batch_size=canaries.BATCH))

    return watched, go, lambda: trainer.strategy._begun.batches.loader.feed.batches


SETTINGS = {
    "learning_rate": 1.0, "lr_scheduler_type": "constant", "save_strategy": "no", "num_train_epochs": EPOCHS,
    "per_device_train_batch_size": HALF, "gradient_accumulation_steps": 2, "report_to": [], "use_cpu": True,
    "disable_tqdm": True, "dataloader_pin_memory": False, "bf16": False,
}  # fmt: skip
EVALUATED = {"eval_strategy": "steps", "eval_steps": 5}


def faults_of(fault):
    """Classes before that of the trainer."""

    class Broken:
        def training_step(self, model, inputs, num_items_in_batch=None):
            broken(self._begun, inputs, self.model, fault)
            return torch.zeros(())

    class Trains:
        def evaluate(self, *_, **__):
            with torch.no_grad():
                next(self.model.parameters()).add_(1e-3)
            return {}

    return (Broken,) if fault in BROKEN else (Trains,) if fault else ()


def by_trainer(folder, fault=None):
    pytest.importorskip("transformers", reason=REASON)
    from anechoic.trainers.transformers import PrivateTrainer
    from tests.trainers.transformers.setting import arguments

    watched = canaries.Watched(canaries.Canaries())
    trainer = type("Given", (*faults_of(fault), PrivateTrainer), {})(
        model=watched.model, args=arguments(folder, **SETTINGS, **EVALUATED),
        train_dataset=canaries.Numbers(), eval_dataset=canaries.Numbers(),
        optimizers=(watched.optimizer, None), privacy=canaries.privacy(),
    )  # fmt: skip
    return watched, trainer.train, lambda: trainer._begun.batches.loader.feed.batches


def language():
    """The canaries as a model of transformers."""
    from transformers import PretrainedConfig, PreTrainedModel
    from transformers.modeling_outputs import CausalLMOutput

    class Language(PreTrainedModel):
        config_class = PretrainedConfig

        def __init__(self):
            super().__init__(PretrainedConfig())
            self.canaries = canaries.Canaries()

        def forward(self, input_ids, attention_mask=None, labels=None, **_):
            return CausalLMOutput(**self.canaries(input_ids, labels))

    return Language()


def by_trl(folder, fault=None):
    pytest.importorskip("trl", reason=REASON)
    from datasets import Dataset
    from transformers import default_data_collator
    from trl import SFTConfig, SFTTrainer

    from anechoic.trainers.transformers import PrivateTrainer
    from tests.slow.trainers.transformers.test_trl import tokenizer

    rows = [canaries.Numbers()[i] for i in range(canaries.CANARIES)]
    data = Dataset.from_dict({name: [row[name].tolist() for row in rows] for name in rows[0]})
    watched = canaries.Watched(language())
    evaluated = EVALUATED if fault == "evaluation trains" else {}  # TRL's own looks into language models
    given = {"dataset_kwargs": {"skip_prepare_dataset": True}, "gradient_checkpointing": False}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        trainer = type("Given", (*faults_of(fault), PrivateTrainer, SFTTrainer), {})(
            model=watched.model, args=SFTConfig(str(folder), **given, **SETTINGS, **evaluated),
            train_dataset=data, eval_dataset=data, data_collator=default_data_collator,
            processing_class=tokenizer(), optimizers=(watched.optimizer, None), privacy=canaries.privacy(),
        )  # fmt: skip
    return watched, trainer.train, lambda: trainer._begun.batches.loader.feed.batches


BROKEN = ("drops a part", "over the batch")


def broken(begun, batch, model, fault):
    """The last part of a batch is not trained on; or a mean over the tokens of the batch is."""
    for part in begun.parts(batch):
        if fault == "over the batch":
            canaries.token_mean(model, part).backward()
            continue
        begun.module(part).backward()
        break


# -- what each keeps ------------------------------------------------------------------------------


@pytest.fixture(params=[by_accelerate, by_fabric, by_lightning, by_trainer, by_trl])
def door(request, monkeypatch):
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    return request.param


def trained(door, folder):
    """(the watched run, its batches), of all steps."""
    watched, go, batches = door(folder)
    go()
    return watched, batches()


def test_it_passes_its_audit(door, tmp_path):
    report = canaries.audited(*trained(door, tmp_path))
    assert not report.violated, report


@pytest.mark.parametrize("fault", [canaries.counted_twice, canaries.noise_in_half])
def test_the_audit_sees_a_fault_of_the_library(door, tmp_path, monkeypatch, fault):
    fault(monkeypatch)
    assert canaries.sees(fault, lambda: trained(door, tmp_path))


@pytest.mark.parametrize("prepared", [accelerate, fabric])
def test_micro_batches_take_the_optimizer_that_a_framework_made(prepared):
    """The same run, bit for bit, with the optimizer of make_private or what prepare() made of it."""
    found = []
    for wrapped in (False, True):
        ledger._MADE.clear()
        watched, go, _ = looped(prepared, wrapped)
        go()
        found.append(torch.cat([p.detach().reshape(-1) for p in watched.model.parameters()]))
    assert same_bits(*found)


@pytest.mark.parametrize("given", [by_lightning, by_trainer, by_trl])
@pytest.mark.parametrize(
    ("fault", "words"),
    [
        ("drops a part", "taken for a batch of its own"),
        ("over the batch", "no gradient reached"),
        ("evaluation trains", "changed by something else than"),
    ],
)
def test_a_fault_of_a_script_is_refused(given, tmp_path, monkeypatch, fault, words):
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    watched, go, _ = given(tmp_path, fault)
    with pytest.raises((DesynchronizedError, GuaranteeError, MismatchError), match=words):
        go()
    assert len(watched.rows) < canaries.STEPS
