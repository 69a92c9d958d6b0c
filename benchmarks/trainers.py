"""What a trainer's own loop costs beside the bare engine: processor time of a step, both sides in one run.

    python benchmarks/trainers.py [--steps 40] [--rounds 5] [--json FILE]

A GPT-2-shaped model (width 128, two layers, 64 tokens), batches of 16 in a fixed order, AdamW. Each round
trains the same steps by Hugging Face's Trainer with a private run inside (logging every tenth step) and by a
bare loop; rounds take turns in going first. Needs transformers: make test-all installs it.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import tempfile
import time
import warnings
from pathlib import Path
from typing import Any

import torch
from torch.utils.data import DataLoader, Dataset
from transformers import GPT2Config, GPT2LMHeadModel, TrainerCallback, TrainingArguments
from transformers.trainer_callback import PrinterCallback

from anechoic.torch import PrivacyEngine
from anechoic.trainers import Privacy
from anechoic.trainers.transformers import PrivateTrainer

WORDS, LENGTH, BATCH, WARM = 500, 64, 16, 4
ASKED: dict[str, Any] = {
    "target_epsilon": 8.0,
    "target_delta": 1e-5,
    "max_grad_norm": 1.0,
    "poisson_sampling": False,
    "mechanism": "identity",
}


class Sentences(Dataset):
    def __init__(self, rows: int) -> None:
        self.words = torch.randint(WORDS, (rows, LENGTH), generator=torch.Generator().manual_seed(0))

    def __len__(self) -> int:
        return len(self.words)

    def __getitem__(self, i: int) -> dict[str, torch.Tensor]:
        return {"input_ids": self.words[i], "labels": self.words[i]}


def model() -> GPT2LMHeadModel:
    torch.manual_seed(0)
    return GPT2LMHeadModel(
        GPT2Config(
            vocab_size=WORDS,
            n_embd=128,
            n_layer=2,
            n_head=4,
            n_positions=LENGTH,
            bos_token_id=0,
            eos_token_id=0,
            loss_type="ForCausalLM",
        )
    )


class Clock(TrainerCallback):
    """Processor time from the end of the warm steps to that of the last one."""

    def __init__(self) -> None:
        self.times: list[float] = []

    def on_step_end(self, *_: Any, **__: Any) -> None:
        self.times.append(time.process_time())

    @property
    def a_step(self) -> float:
        return (self.times[-1] - self.times[WARM - 1]) / (len(self.times) - WARM)


def by_trainer(steps: int) -> float:
    clock = Clock()
    with tempfile.TemporaryDirectory() as folder:
        trainer = PrivateTrainer(
            model=model(),
            args=TrainingArguments(
                output_dir=str(Path(folder) / "out"),
                max_steps=steps,
                per_device_train_batch_size=BATCH,
                learning_rate=1e-3,
                logging_steps=10,
                save_strategy="no",
                report_to=[],
                use_cpu=True,
                disable_tqdm=True,
                dataloader_pin_memory=False,
            ),
            train_dataset=Sentences(BATCH * steps),
            callbacks=[clock],
            privacy=Privacy(**ASKED),
        )
        trainer.remove_callback(PrinterCallback)
        trainer.train()
    return clock.a_step


def by_hand(steps: int) -> float:
    clock, network = Clock(), model()
    net, optimizer, loader = PrivacyEngine().make_private_with_epsilon(
        module=network.train(),
        optimizer=torch.optim.AdamW(network.parameters(), lr=1e-3, weight_decay=0.0),
        data_loader=DataLoader(Sentences(BATCH * steps), batch_size=BATCH, shuffle=True),
        steps=steps,
        **ASKED,
    )
    for batch in loader:
        optimizer.zero_grad()
        net(**batch).loss.backward()
        optimizer.step()
        clock.on_step_end()
    return clock.a_step


def main() -> None:
    parser = argparse.ArgumentParser(description="A trainer's loop beside the bare engine.")
    parser.add_argument("--steps", type=int, default=40)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--json", type=Path, metavar="FILE")
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    os.environ["HF_HUB_OFFLINE"] = "1"
    torch.set_num_threads(1)
    found: dict[str, list[float]] = {"trainer": [], "bare": []}
    sides = {"trainer": by_trainer, "bare": by_hand}
    for turn in range(options.rounds):
        for name in list(sides)[:: -1 if turn % 2 else 1]:
            found[name].append(sides[name](options.steps))
    ratios = [one / other for one, other in zip(found["trainer"], found["bare"], strict=True)]
    middle = {name: 1e3 * statistics.median(times) for name, times in found.items()}
    print(
        f"processor time of a step: Trainer {middle['trainer']:.1f} ms, bare loop {middle['bare']:.1f} ms,"
        f" ratio {statistics.median(ratios):.3f} ({min(ratios):.3f} to {max(ratios):.3f})"
    )
    if options.json:
        options.json.write_text(json.dumps({"ms": middle, "ratios": ratios}))


if __name__ == "__main__":
    main()
