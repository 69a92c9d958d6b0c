"""Speed and memory of a private step of fine-tuning: plain torch, both ways of this library, both of Opacus.

    python benchmarks/finetune_memory.py [--adapt full lora] [--tokens 128 512] [--batch 16 32] [--json F]

A GPT-2-shaped model (6 layers of width 256, 5,000 words, randomly initialised; input and output embeddings
are two tables, since Opacus's ghost clipping refuses one), whole or with adapters of rank 8 on all layers of
its blocks. A step is all of it: forward and backward pass, clipping, independent noise, AdamW. The loader is
the same: shuffled batches of one size. Opacus is given the positions, one row an example, without which it
cannot run this model.

Each arm has a process of its own. They take turns, a few steps each, so that all see the same machine; tokens
a second are of processor time and of wall time, medians over rounds, and ratios are taken round by round.
Memory is the largest resident set of the process in its steps, less that with the model built. Linux only.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import platform
import statistics
import time
import warnings
from collections.abc import Callable
from datetime import date
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

#: Arm: (library, its grad_sample_mode).
ARMS = {
    "plain": ("torch", ""),
    "rows": ("anechoic", "rows"),
    "ghost": ("anechoic", "ghost"),
    "Opacus, hooks": ("opacus", "hooks"),
    "Opacus, ghost": ("opacus", "ghost"),
}
#: Which arm stands beside which.
BESIDE = {"rows": "Opacus, hooks", "ghost": "Opacus, ghost"}
WORDS = 5000


def peak(*, anew: bool = False) -> float:
    """Largest resident set of this process since it was last asked `anew`, MiB."""
    if anew:
        Path("/proc/self/clear_refs").write_text("5")
    lines = Path("/proc/self/status").read_text().splitlines()
    return float(next(line.split()[1] for line in lines if line.startswith("VmHWM"))) / 1024


def built(adapt: str, tokens: int, layers: int, width: int) -> Any:
    """The model, randomly initialised, in train() mode and without dropout."""
    import torch
    from peft import LoraConfig, get_peft_model
    from transformers import GPT2Config, GPT2LMHeadModel

    torch.manual_seed(0)
    config = GPT2Config(
        vocab_size=WORDS,
        n_embd=width,
        n_layer=layers,
        n_head=max(1, width // 64),
        n_positions=tokens,
        resid_pdrop=0.0,
        embd_pdrop=0.0,
        attn_pdrop=0.0,
        bos_token_id=0,
        eos_token_id=0,
        tie_word_embeddings=False,
    )
    model = GPT2LMHeadModel(config)
    if adapt == "full":
        return model.train()
    targets = ["c_attn", "c_proj", "c_fc"]
    return get_peft_model(
        model, LoraConfig(task_type="CAUSAL_LM", r=8, target_modules=targets, fan_in_fan_out=True)
    ).train()


def stepper(library: str, mode: str, asked: dict[str, Any]) -> Callable[[], None]:
    """One training step a call."""
    import torch
    from opacus import PrivacyEngine as OpacusEngine
    from torch.utils.data import DataLoader, TensorDataset

    from anechoic.mechanism.mechanism import Mechanism
    from anechoic.sampling import FixedOrder
    from anechoic.strategies import Identity
    from anechoic.torch import PrivacyEngine

    tokens, batch, steps = asked["tokens"], asked["batch"], asked["steps"]
    model = built(asked["adapt"], tokens, asked["layers"], asked["width"])
    optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=1e-4)
    words = torch.randint(WORDS, (batch, tokens), generator=torch.Generator().manual_seed(1))
    loader: Any = DataLoader(TensorDataset(words), batch_size=batch, shuffle=True)
    criterion: Any = torch.nn.CrossEntropyLoss()
    if library == "anechoic":
        given = {"criterion": criterion} if mode == "ghost" else {}
        model, optimizer, *middle, loader = PrivacyEngine().make_private(
            module=model,
            optimizer=optimizer,
            data_loader=loader,
            grad_sample_mode=mode,
            max_grad_norm=1.0,
            mechanism=Mechanism(Identity(steps), FixedOrder(batch, batch, steps=steps), 1.0),
            **given,
        )
        criterion = middle[0] if middle else criterion
    if library == "opacus":
        model, optimizer, *middle, loader = OpacusEngine().make_private(
            module=model,
            optimizer=optimizer,
            data_loader=loader,
            criterion=criterion,
            noise_multiplier=1.0,
            max_grad_norm=1.0,
            poisson_sampling=False,
            grad_sample_mode=mode,
        )
        criterion = middle[0] if middle else criterion
    positions = torch.arange(tokens).repeat(batch, 1)  # its ghost clipping wants them contiguous
    extra = {"position_ids": positions} if library == "opacus" else {}
    flat = mode == "ghost" and library == "opacus"  # it knows this form of a loss of sequences

    def step() -> None:
        for (rows,) in loader:
            optimizer.zero_grad()
            logits = model(input_ids=rows, **extra).logits[:, :-1]
            if flat:
                loss = criterion(logits.flatten(0, 1), rows[:, 1:].flatten(), shape=logits.shape)
            else:
                loss = criterion(logits.transpose(1, 2), rows[:, 1:])
            loss.backward()
            optimizer.step()

    return step


def work(arm: str, asked: dict[str, Any], pipe: Connection) -> None:
    """An arm in a process of its own: a number of steps when asked for, and what they cost."""
    os.environ["HF_HUB_OFFLINE"] = "1"
    warnings.simplefilter("ignore")
    import torch

    torch.set_num_threads(asked["threads"])
    step = stepper(*ARMS[arm], asked)
    before = peak(anew=True)
    step()  # the first one makes what later ones find
    pipe.send(None)
    while steps := pipe.recv():
        wall, processor = time.perf_counter(), time.process_time()
        for _ in range(steps):
            step()
        wall, processor = time.perf_counter() - wall, time.process_time() - processor
        pipe.send({"wall": wall / steps, "processor": processor / steps, "peak": peak() - before})


def measure(
    asked: dict[str, Any], arms: list[str], rounds: int, each: int
) -> dict[str, dict[str, list[float]]]:
    """For each arm what each round gave; arms that failed have an empty record."""
    asked = {**asked, "steps": rounds * each + 1}
    context = multiprocessing.get_context("spawn")
    workers = {}
    for arm in arms:  # one after the other: while one starts, the others wait
        pipe, other = context.Pipe()
        process = context.Process(target=work, args=(arm, asked, other), daemon=True)
        process.start()
        other.close()
        try:
            pipe.recv()
        except EOFError:
            print(f"{arm} did not run: {asked}", flush=True)
            continue
        workers[arm] = (pipe, process)
    found: dict[str, dict[str, list[float]]] = {arm: {} for arm in workers}
    for turn in range(rounds):
        for arm in list(workers)[:: -1 if turn % 2 else 1]:
            pipe, _ = workers[arm]
            pipe.send(each)
            for name, value in pipe.recv().items():
                found[arm].setdefault(name, []).append(value)
    for pipe, process in workers.values():
        pipe.send(0)
        process.join()
    return found


def lines(asked: dict[str, Any], found: dict[str, dict[str, list[float]]]) -> list[str]:
    """Lines of the table: one an arm."""
    made = []
    size = asked["tokens"] * asked["batch"]
    for arm, record in found.items():
        rates = [f"{size / statistics.median(record[name]):,.0f}" for name in ("processor", "wall")]
        beside = BESIDE.get(arm, "")
        ratio = memory = ""
        if beside in found:
            ratios = [b / a for a, b in zip(record["processor"], found[beside]["processor"], strict=True)]
            ratio = f"{statistics.median(ratios):.2f} ({min(ratios):.2f} to {max(ratios):.2f})"
            memory = f"{max(record['peak']) / max(found[beside]['peak']):.2f}"
        made.append(
            f"| {asked['adapt']} | {asked['tokens']} | {asked['batch']} | {arm} | {rates[0]} | {rates[1]} |"
            f" {max(record['peak']):,.0f} | {ratio} | {memory} |"
        )
    return made


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--adapt", nargs="+", choices=("full", "lora"), default=["lora", "full"])
    parser.add_argument("--tokens", nargs="+", type=int, default=[128, 512])
    parser.add_argument("--batch", nargs="+", type=int, default=[16, 32])
    parser.add_argument("--layers", type=int, default=6)
    parser.add_argument("--width", type=int, default=256)
    parser.add_argument("--arms", nargs="+", choices=list(ARMS), default=list(ARMS))
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--each", type=int, default=1, help="steps of an arm in a round")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--json", type=Path, metavar="FILE")
    options = parser.parse_args()
    print(
        f"{options.layers} layers of {options.width}, {platform.machine()}, {os.cpu_count()} cores,"
        f" {options.threads} threads, {options.rounds} rounds of {options.each} steps, {date.today()}\n"
    )
    print(
        "| trained | tokens | batch | | tokens a second of processor time | of wall time | MiB |"
        " speed over Opacus's | memory over Opacus's |\n|---|---|---|---|---|---|---|---|---|",
        flush=True,
    )
    records = []
    for adapt in options.adapt:
        for tokens in options.tokens:
            for batch in options.batch:
                asked = {"adapt": adapt, "tokens": tokens, "batch": batch}
                asked |= {"layers": options.layers, "width": options.width, "threads": options.threads}
                found = measure(asked, options.arms, options.rounds, options.each)
                print("\n".join(lines(asked, found)), flush=True)
                records.append({**asked, "found": found})
    if options.json:
        options.json.write_text(json.dumps(records))


if __name__ == "__main__":
    main()
