"""TRL's SFTTrainer with the mixin: adapters of PEFT on a frozen base, in float32 and under bfloat16."""

import warnings

import pytest
import torch

pytest.importorskip("trl", reason="make test-all installs it")

from datasets import Dataset
from peft import LoraConfig
from tokenizers import Tokenizer, models, pre_tokenizers
from tokenizers.trainers import BpeTrainer
from transformers import PreTrainedTokenizerFast, Trainer
from trl import SFTConfig, SFTTrainer

from anechoic.errors import UnsupportedError
from anechoic.trainers import Privacy
from anechoic.trainers.transformers import PrivateTrainer
from tests.floats import same_bits
from tests.trainers.setting import KEYS, as_in_another_process, flat
from tests.trainers.transformers.setting import ASKED, gpt2

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("default")]


class PrivateSFTTrainer(PrivateTrainer, SFTTrainer):
    pass


TEXTS = [f"the {a} {b} was seen {c} times" for a in ["red", "green", "blue", "grey"]
         for b in ["cat", "dog", "owl", "fox"] for c in ("two", "three", "seven", "no")]  # fmt: skip


def tokenizer():
    found = Tokenizer(models.BPE())
    found.pre_tokenizer = pre_tokenizers.ByteLevel()
    found.train_from_iterator(TEXTS, BpeTrainer(vocab_size=30, special_tokens=["<pad>", "<eos>"]))
    return PreTrainedTokenizerFast(tokenizer_object=found, pad_token="<pad>", eos_token="<eos>")


def start(out, privacy=None, kind=PrivateSFTTrainer, **options):
    as_in_another_process()
    given = {
        "output_dir": str(out), "num_train_epochs": 2, "per_device_train_batch_size": 4,
        "gradient_accumulation_steps": 4, "learning_rate": 1e-2, "save_steps": 3, "logging_steps": 2,
        "report_to": [], "use_cpu": True, "disable_tqdm": True, "max_length": 16, "bf16": False, **options,
    }  # fmt: skip
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return kind(
            model=gpt2(dropout=0.1),
            args=SFTConfig(**given),
            train_dataset=Dataset.from_dict({"text": TEXTS}),
            eval_dataset=Dataset.from_dict({"text": TEXTS[:8]}),
            processing_class=tokenizer(),
            peft_config=LoraConfig(
                r=2, target_modules=["c_attn"], task_type="CAUSAL_LM", fan_in_fan_out=True
            ),
            privacy=privacy or Privacy(**ASKED, **KEYS),
        )


def test_a_loss_that_is_not_the_trainers_own_is_refused(tmp_path):
    with pytest.raises(UnsupportedError, match=r"loss_type='dft' is refused: take 'nll'"):
        start(tmp_path / "out", loss_type="dft")


def test_statistics_of_trl_stay_out_of_the_log(tmp_path):
    class Plain(PrivateTrainer, SFTTrainer):
        compute_loss = Trainer.compute_loss

        def training_step(self, model, inputs, num_items_in_batch=None):
            self._metrics["train"]["words_of_a_row"].append(1.0)
            return super().training_step(model, inputs, num_items_in_batch)

    trainer = start(tmp_path / "out", kind=Plain)
    trainer.train()
    assert trainer.engine.releases
    assert not any("words_of_a_row" in entry for entry in trainer.state.log_history)


@pytest.fixture(autouse=True)
def offline(monkeypatch):
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")


@pytest.mark.parametrize("bf16", [False, True])
def test_adapters_learn_and_the_base_stays(bf16, tmp_path, caplog):
    trainer = start(tmp_path / "out", bf16=bf16)
    frozen = {n: p.detach().clone() for n, p in trainer.model.named_parameters() if not p.requires_grad}
    adapters = {n: p.detach().clone() for n, p in trainer.model.named_parameters() if p.requires_grad}
    trainer.train()
    assert not any("cannot run this model" in record.message for record in caplog.records)
    assert trainer.engine.releases == trainer.state.global_step == 8
    now = dict(trainer.model.named_parameters())
    assert all(same_bits(frozen[n], now[n].detach()) for n in frozen)
    assert all(now[n].dtype == torch.float32 and not torch.equal(adapters[n], now[n]) for n in adapters)
    said = {name for entry in trainer.state.log_history for name in entry}
    assert said <= {
        "epsilon", "noise_to_signal", "learning_rate", "epoch", "step", "train_runtime",
        "train_samples_per_second", "train_steps_per_second",
    }  # fmt: skip


def test_it_goes_on_bit_for_bit_and_evaluation_changes_nothing(tmp_path):
    trainer = start(tmp_path / "out")
    trainer.train()
    again = start(tmp_path / "out", privacy=Privacy(**ASKED), eval_strategy="steps", eval_steps=2)
    again.train(resume_from_checkpoint=str(tmp_path / "out" / "checkpoint-3"))
    assert same_bits(flat(again.model), flat(trainer.model))


@pytest.mark.parametrize("name", ["packing", "padding_free"])
def test_rows_of_several_examples_are_refused(name, tmp_path):
    with pytest.raises(UnsupportedError, match=f"{name}=True is refused"):
        start(tmp_path / "out", **{name: True})
