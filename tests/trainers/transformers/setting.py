"""A private Trainer on sentences; and what a script of it says when it is run as a process of its own.

python -m tests.trainers.transformers.setting OUT RESUME RESULT
"""

import warnings

import torch
from transformers import GPT2Config, GPT2LMHeadModel, TrainingArguments

from anechoic.trainers import Privacy
from anechoic.trainers.transformers import PrivateTrainer
from tests.trainers.setting import KEYS, WORDS, Sentences, as_in_another_process

ASKED = {"target_epsilon": 8.0, "target_delta": 1e-3, "max_grad_norm": 1.0, "poisson_sampling": False}


def gpt2(dropout=0.0):
    torch.manual_seed(0)
    config = GPT2Config(
        vocab_size=WORDS, n_embd=16, n_layer=2, n_head=2, n_positions=16, bos_token_id=0, eos_token_id=0,
        pad_token_id=0, resid_pdrop=dropout, embd_pdrop=dropout, attn_pdrop=dropout, loss_type="ForCausalLM",
    )  # fmt: skip
    return GPT2LMHeadModel(config)


def arguments(out, **options):
    given = {
        "output_dir": str(out), "num_train_epochs": 3, "per_device_train_batch_size": 16,
        "learning_rate": 1e-3, "logging_steps": 2, "save_steps": 5, "report_to": [], "use_cpu": True,
        "disable_tqdm": True, "dataloader_pin_memory": False, **options,
    }  # fmt: skip
    return TrainingArguments(**given)


def start(
    out, *, model=None, privacy=None, kind=PrivateTrainer, keys=True, dataset=None, given=None, **options
):
    """A trainer that has not begun. `given` are arguments of the Trainer, `options` of its settings."""
    as_in_another_process()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of transformers about itself
        return kind(
            model=gpt2() if model is None else model,
            args=arguments(out, **options),
            train_dataset=dataset or Sentences(),
            eval_dataset=Sentences(20),
            privacy=Privacy(**ASKED, **(KEYS if keys else {})) if privacy is None else privacy,
            **(given or {}),
        )
