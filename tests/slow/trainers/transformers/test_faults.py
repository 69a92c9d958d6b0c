"""Faults that a script may have around the Trainer and TRL's: each is refused."""

import warnings

import pytest
import torch

pytest.importorskip("transformers", reason="make test-all installs it")

from transformers import PretrainedConfig, PreTrainedModel, default_data_collator
from transformers.modeling_outputs import CausalLMOutput

from anechoic.errors import DesynchronizedError, GuaranteeError
from anechoic.trainers.transformers import PrivateTrainer
from tests.trainers import canaries
from tests.trainers.transformers.setting import arguments

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("default")]
SETTINGS = {
    "learning_rate": 1.0, "lr_scheduler_type": "constant", "save_strategy": "no",
    "num_train_epochs": canaries.STEPS // canaries.PASS,
    "per_device_train_batch_size": canaries.BATCH // 2, "gradient_accumulation_steps": 2, "report_to": [],
    "use_cpu": True, "disable_tqdm": True, "dataloader_pin_memory": False, "bf16": False,
}  # fmt: skip


class Language(PreTrainedModel):
    """The canaries as a model of transformers."""

    config_class = PretrainedConfig

    def __init__(self):
        super().__init__(PretrainedConfig())
        self.canaries = canaries.Canaries()

    def forward(self, input_ids, attention_mask=None, labels=None, **_):
        return CausalLMOutput(**self.canaries(input_ids, labels))


def by_trainer(folder, fault=None, **options):
    watched = canaries.Watched(canaries.Canaries())
    kind = type("Faulty", (fault, PrivateTrainer), {}) if fault else PrivateTrainer
    return watched, kind(
        model=watched.model,
        args=arguments(folder, **SETTINGS, **options),
        train_dataset=canaries.Numbers(),
        eval_dataset=canaries.Numbers(),
        optimizers=(watched.optimizer, None),
        privacy=canaries.privacy(),
    )


def by_trl(folder, fault=None, **options):
    pytest.importorskip("trl", reason="make test-all installs it")
    from datasets import Dataset
    from trl import SFTConfig, SFTTrainer

    from tests.slow.trainers.transformers.test_trl import tokenizer

    rows = [canaries.Numbers()[i] for i in range(canaries.CANARIES)]
    data = Dataset.from_dict({name: [row[name].tolist() for row in rows] for name in rows[0]})
    watched = canaries.Watched(Language())
    bases = (PrivateTrainer, SFTTrainer)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return watched, type("PrivateSFTTrainer", (fault, *bases) if fault else bases, {})(
            model=watched.model,
            args=SFTConfig(
                str(folder),
                dataset_kwargs={"skip_prepare_dataset": True},
                gradient_checkpointing=False,
                **SETTINGS,
                **options,
            ),
            train_dataset=data,
            eval_dataset=data,
            data_collator=default_data_collator,
            processing_class=tokenizer(),
            optimizers=(watched.optimizer, None),
            privacy=canaries.privacy(),
        )


@pytest.fixture(params=[by_trainer, by_trl])
def door(request, monkeypatch):
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    return request.param


class DropsPart:
    """The last part of a batch is not trained on."""

    def training_step(self, model, inputs, num_items_in_batch=None):
        self._begun.module(next(iter(self._begun.parts(inputs)))).backward()
        return torch.zeros(())


class OverTheBatch:
    """A mean over the tokens of the batch, as the Trainer takes it: not of single rows."""

    def training_step(self, model, inputs, num_items_in_batch=None):
        for part in self._begun.parts(inputs):
            canaries.token_mean(self.model, part).backward()
        return torch.zeros(())


class EvaluationTrains:
    def evaluate(self, *_, **__):
        with torch.no_grad():
            next(self.model.parameters()).add_(1e-3)
        return {}


@pytest.mark.parametrize(
    ("options", "error", "words"),
    [
        ({"fault": DropsPart}, DesynchronizedError, "taken for a batch of its own"),
        ({"fault": OverTheBatch}, DesynchronizedError, "no gradient reached"),
        (
            {"fault": EvaluationTrains, "eval_strategy": "steps", "eval_steps": 5},
            GuaranteeError,
            "changed by something else than",
        ),
    ],
)
def test_a_fault_of_a_script_is_refused(door, tmp_path, options, error, words):
    watched, trainer = door(tmp_path, **options)
    with pytest.raises(error, match=words):
        trainer.train()
    assert len(watched.rows) < canaries.STEPS
