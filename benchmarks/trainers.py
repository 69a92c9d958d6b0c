"""What a trainer's own loop costs beside the bare engine: processor time of a step, all in one run.

    python benchmarks/trainers.py [--arms trainer …] [--steps 40] [--rounds 5] [--json FILE]

A GPT-2-shaped model (width 128, two layers, 64 tokens), batches of 16 in a fixed order, AdamW. Each round
trains the same steps by Hugging Face's Trainer and by Lightning's with a private run inside (both log every
tenth step), by the loops of Accelerate and Fabric, and by a bare loop; rounds take turns in going first.
`bare, again` is the bare loop a second time: its ratio shows what the machine adds. Needs transformers,
lightning and accelerate: make test-all installs them.
"""

from __future__ import annotations

import argparse
import json
import logging
import os
import statistics
import tempfile
import time
import warnings
from pathlib import Path
from typing import Any

import lightning
import torch
from accelerate import Accelerator
from lightning.fabric import Fabric
from torch.utils.data import DataLoader, Dataset
from transformers import GPT2Config, GPT2LMHeadModel, TrainerCallback, TrainingArguments
from transformers.trainer_callback import PrinterCallback

from anechoic.torch import PrivacyEngine
from anechoic.trainers import Privacy
from anechoic.trainers.lightning import PrivateStrategy
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


class Module(lightning.LightningModule):
    """The model's own loss, in Lightning's clothes."""

    def __init__(self) -> None:
        super().__init__()
        self.network = model()

    def training_step(self, batch: Any, _: int) -> torch.Tensor:
        return self.network(**batch).loss  # type: ignore[no-any-return]

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.AdamW(self.parameters(), lr=1e-3, weight_decay=0.0)


class LightningClock(lightning.Callback):
    """The same, after Lightning's steps."""

    def __init__(self) -> None:
        self.clock = Clock()

    def on_train_batch_end(self, *_: Any, **__: Any) -> None:
        self.clock.on_step_end()


def by_lightning(steps: int) -> float:
    ticking = LightningClock()
    with tempfile.TemporaryDirectory() as folder:
        trainer = lightning.Trainer(
            max_steps=steps,
            strategy=PrivateStrategy(Privacy(**ASKED)),
            accelerator="cpu",
            devices=1,
            log_every_n_steps=10,
            callbacks=[ticking],
            logger=False,
            default_root_dir=folder,
            enable_checkpointing=False,
            enable_progress_bar=False,
            enable_model_summary=False,
        )
        trainer.fit(Module().train(), DataLoader(Sentences(BATCH * steps), batch_size=BATCH, shuffle=True))
    return ticking.clock.a_step


def by_loop(steps: int, prepare: Any = None) -> float:
    """A loop of one's own; `prepare` gives model, optimizer and what runs the backward pass."""
    clock, network = Clock(), model()
    net, optimizer, loader = PrivacyEngine().make_private_with_epsilon(
        module=network.train(),
        optimizer=torch.optim.AdamW(network.parameters(), lr=1e-3, weight_decay=0.0),
        data_loader=DataLoader(Sentences(BATCH * steps), batch_size=BATCH, shuffle=True),
        steps=steps,
        **ASKED,
    )

    def backward(loss: torch.Tensor) -> None:
        loss.backward()

    if prepare is not None:
        net, optimizer, backward = prepare(net, optimizer)
    for batch in loader:
        optimizer.zero_grad()
        backward(net(**batch).loss)
        optimizer.step()
        clock.on_step_end()
    return clock.a_step


def by_accelerate(steps: int) -> float:
    def prepare(net: Any, optimizer: Any) -> tuple[Any, Any, Any]:
        accelerator = Accelerator(cpu=True)
        return *accelerator.prepare(net, optimizer), accelerator.backward

    return by_loop(steps, prepare)


def by_fabric(steps: int) -> float:
    def prepare(net: Any, optimizer: Any) -> tuple[Any, Any, Any]:
        fabric = Fabric(accelerator="cpu", devices=1)
        return *fabric.setup(net, optimizer), fabric.backward

    return by_loop(steps, prepare)


#: Door: a run of so many steps, and what one of them took.
DOORS = {
    "Trainer": by_trainer,
    "Lightning": by_lightning,
    "Accelerate": by_accelerate,
    "Fabric": by_fabric,
    "bare, again": by_loop,
}


def main() -> None:
    parser = argparse.ArgumentParser(description="Trainers and frameworks beside the bare engine.")
    parser.add_argument("--arms", nargs="+", choices=list(DOORS), default=list(DOORS))
    parser.add_argument("--steps", type=int, default=40)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--json", type=Path, metavar="FILE")
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    os.environ["HF_HUB_OFFLINE"] = "1"
    for name in ("lightning.pytorch", "lightning.fabric"):
        logging.getLogger(name).setLevel(logging.ERROR)
    torch.set_num_threads(1)
    sides: dict[str, Any] = {"bare": by_loop} | {name: DOORS[name] for name in options.arms}
    found: dict[str, list[float]] = {name: [] for name in sides}
    for turn in range(options.rounds):
        for name in list(sides)[:: -1 if turn % 2 else 1]:
            found[name].append(1e3 * sides[name](options.steps))
        if options.json:  # a round is whole: what was measured so far
            options.json.write_text(json.dumps(found))
    print(f"processor time of a step: bare loop {statistics.median(found['bare']):.1f} ms\n")
    print("| | ms | over the bare loop (range) |\n|---|---|---|")
    for name in options.arms:
        ratios = [one / other for one, other in zip(found[name], found["bare"], strict=True)]
        print(
            f"| {name} | {statistics.median(found[name]):.1f} |"
            f" {statistics.median(ratios):.3f} ({min(ratios):.3f} to {max(ratios):.3f}) |"
        )


if __name__ == "__main__":
    main()
