"""Private fine-tuning of a GPT-2-shaped model, to fork: python examples/finetune.py [--adapt lora]

Without a network: the text is Python's own help, 79 topics. A small model is first trained on 16 of them as
public text, then fine-tuned privately on 48 others, and measured on the 15 that are left. With --model gpt2
transformers loads that model and its tokenizer instead. docs/fine-tuning.md goes through it.
"""

from __future__ import annotations

import argparse
import copy
import hashlib
import itertools
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pydoc_data.topics import topics
from typing import Any

import torch
from opacus import PrivacyEngine as OpacusEngine
from peft import LoraConfig, get_peft_model
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset
from transformers import AutoModelForCausalLM, AutoTokenizer, GPT2Config, GPT2LMHeadModel

import anechoic as an
from anechoic.torch import CorrectedAdam, PrivacyEngine

PUBLIC, PRIVATE = 16, 48  # topics; the others are held out
MOST = 8  # windows of one owner in one step
#: Rates that were good for independent noise at epsilon 8, by the small model on public text.
RATES = {
    ("full", "adamw"): 1e-3,
    ("lora", "adamw"): 1e-2,
    ("full", "sgd"): 0.1,
    ("lora", "sgd"): 0.2,
}


@dataclass(frozen=True)
class Windows:
    """Token windows, shape (N, length) each, and the topic that owns each private one."""

    public: Tensor
    private: Tensor
    held_out: Tensor
    owners: list[str]


@dataclass(frozen=True)
class Choices:
    """What a run is asked for; `rate` None takes that of `RATES`."""

    adapt: str = "full"
    unit: str = "example"
    order: str = "fixed"
    epsilon: float = 8.0
    delta: float = 1e-5
    optimizer: str = "corrected"
    mechanism: Any = "auto"
    epochs: int = 3
    batch_size: int = 128
    rate: float | None = None
    seed: int = 0

    @property
    def learning_rate(self) -> float:
        kind = "sgd" if self.optimizer == "sgd" else "adamw"
        return self.rate if self.rate is not None else RATES[self.adapt, kind]


# -- public: what no guarantee has to cover -------------------------------------------------------


def split_topics() -> tuple[list[str], list[str], list[str]]:
    """Names of public, private and held-out topics, in an order that depends on no text."""
    names = sorted(topics, key=lambda name: hashlib.sha256(name.encode()).digest())
    return names[:PUBLIC], names[PUBLIC : PUBLIC + PRIVATE], names[PUBLIC + PRIVATE :]


def texts_of_topics() -> dict[str, str]:
    """Text of each topic, public ones first, without paragraphs that an earlier one has too.

    Topics repeat each other. A paragraph on two of them would be in two parts of the split, or have two
    owners of whom the guarantee counts one at a time.
    """
    seen: set[str] = set()
    kept = {}
    for name in (name for part in split_topics() for name in part):
        paragraphs = {" ".join(text.split()): text for text in topics[name].split("\n\n")}
        kept[name] = "\n\n".join(text for key, text in paragraphs.items() if key not in seen)
        seen.update(paragraphs)
    return kept


def trained_tokenizer(texts: Iterator[str], vocabulary: int = 512) -> Callable[[str], list[int]]:
    """A byte-level BPE of public text. One trained on private text would be a release without noise."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=vocabulary, initial_alphabet=alphabet, show_progress=False)
    tokenizer.train_from_iterator(texts, trainer)
    return lambda text: tokenizer.encode(text).ids


def windows_of(encode: Callable[[str], list[int]], *, length: int = 32, examples: int = 2560) -> Windows:
    """All topics cut into windows of `length` tokens; `examples` of the private ones, at most."""
    texts = texts_of_topics()
    cut: list[list[list[int]]] = []
    owners: list[str] = []
    for part, names in enumerate(split_topics()):
        cut.append([])
        for name in names:
            ids = encode(texts[name])
            rows = [ids[i : i + length] for i in range(0, len(ids) - length + 1, length)]
            cut[part] += rows
            owners += [name] * len(rows) if part == 1 else []
    # spread over all owners; which ones depends on the numbers of windows alone
    kept = torch.linspace(0, len(owners) - 1, min(examples, len(owners))).long().tolist()
    public, private, held_out = (torch.tensor(rows) for rows in cut)
    return Windows(public, private[kept], held_out, [owners[i] for i in kept])


def small_model(vocabulary: int = 512, length: int = 32) -> nn.Module:
    """A GPT-2 of two layers, randomly initialised."""
    config = GPT2Config(
        vocab_size=vocabulary,
        n_positions=length,
        n_embd=32,
        n_layer=2,
        n_head=2,
        bos_token_id=0,
        eos_token_id=0,
        resid_pdrop=0.0,
        embd_pdrop=0.0,
        attn_pdrop=0.0,
        loss_type="ForCausalLM",
    )
    return GPT2LMHeadModel(config)


def pretrain(model: nn.Module, rows: Tensor, passes: int, rate: float = 3e-3) -> None:
    """Ordinary training on public windows."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=rate)
    model.train()
    for _ in range(passes):
        for chosen in torch.randperm(len(rows)).split(32):
            optimizer.zero_grad()
            model(input_ids=rows[chosen], labels=rows[chosen]).loss.backward()
            optimizer.step()


@torch.no_grad()
def loss_on(model: nn.Module, rows: Tensor) -> float:
    """Mean loss of a token, in nats, of rows of equal length."""
    model.eval()
    total = sum(model(input_ids=part, labels=part).loss.item() * len(part) for part in rows.split(128))
    model.train()
    return total / len(rows)


# -- private ---------------------------------------------------------------------------------------


def adapted(base: nn.Module, how: str) -> nn.Module:
    """A copy of `base`, trained whole, or frozen with low-rank adapters beside its blocks' layers."""
    model = copy.deepcopy(base)
    if how == "full":
        return model.train()
    layers = ["c_attn", "c_proj", "c_fc"]
    config = LoraConfig(task_type="CAUSAL_LM", r=4, target_modules=layers, fan_in_fan_out=True)
    return get_peft_model(model, config).train()


def optimizer_for(model: nn.Module, choices: Choices) -> torch.optim.Optimizer:
    trained = [p for p in model.parameters() if p.requires_grad]
    rate = choices.learning_rate
    if choices.optimizer == "sgd":
        return torch.optim.SGD(trained, lr=rate, momentum=0.9)
    if choices.optimizer == "corrected":
        return CorrectedAdam(trained, lr=rate, weight_decay=0.01, decoupled_weight_decay=True)
    return torch.optim.AdamW(trained, lr=rate, weight_decay=0.01)


def owned(choices: Choices, owners: list[str]) -> dict[str, Any]:
    """What the engine is told of the unit: whose windows are clipped together, and counted once."""
    if choices.unit == "example":
        return {}
    return {"unit": "topic", "unit_ids": an.Units(owners, combine="mean", max_examples=MOST)}


def finetune(
    base: nn.Module,
    data: Windows,
    choices: Choices,
    after_pass: Callable[[int, nn.Module], None] = lambda number, model: None,
    **keys: bytes,
) -> tuple[PrivacyEngine, nn.Module]:
    """The engine and the fine-tuned model, adapters included.

    `after_pass` is called with the number of passes and the model: let it look at public data alone. `keys`
    are noise_key and sampling_key, where a study has to be repeated.
    """
    torch.manual_seed(choices.seed)  # adapters; noise and batches have keys of their own
    plain = adapted(base, choices.adapt)
    engine = PrivacyEngine(**keys)  # type: ignore[arg-type]
    model, optimizer, loader = engine.make_private_with_epsilon(
        module=plain,
        optimizer=optimizer_for(plain, choices),
        data_loader=DataLoader(TensorDataset(data.private), batch_size=choices.batch_size, shuffle=True),
        poisson_sampling=choices.order == "drawn",
        target_epsilon=choices.epsilon,
        target_delta=choices.delta,
        epochs=choices.epochs,
        max_grad_norm=1.0,
        mechanism=choices.mechanism,
        **owned(choices, data.owners),
    )
    for epoch in range(choices.epochs):
        for (rows,) in loader:
            optimizer.zero_grad()
            model(input_ids=rows, labels=rows).loss.backward()
            optimizer.step()
        after_pass(epoch + 1, plain)
    return engine, plain


def finetune_by_opacus(base: nn.Module, data: Windows, choices: Choices) -> tuple[float, float, nn.Module]:
    """The same run by Opacus: (epsilon that it states, epsilon that holds for this loader, model).

    Opacus computes its noise for Poisson sampling, with poisson_sampling=False too. The loader shuffles, and
    takes each example once a pass: no theorem amplifies that here, so that each of k passes counts in full.
    """
    torch.manual_seed(choices.seed)
    plain = adapted(base, choices.adapt)
    engine = OpacusEngine()
    model, optimizer, loader = engine.make_private_with_epsilon(
        module=plain,
        optimizer=optimizer_for(plain, choices),
        data_loader=DataLoader(TensorDataset(data.private), batch_size=choices.batch_size, shuffle=True),
        poisson_sampling=False,
        target_epsilon=choices.epsilon,
        target_delta=choices.delta,
        epochs=choices.epochs,
        max_grad_norm=1.0,
    )
    for _ in range(choices.epochs):
        for (rows,) in loader:
            optimizer.zero_grad()
            # Opacus needs one row an example in every trained layer's input, positions too
            positions = torch.arange(rows.shape[1]).expand(len(rows), -1)
            model(input_ids=rows, labels=rows, position_ids=positions).loss.backward()
            optimizer.step()
    steps = len(loader) * choices.epochs
    once_a_pass = an.sampling.External(
        an.participation.OncePerEpoch(len(loader)), batch_size=choices.batch_size, steps=steps
    )
    truth = an.Mechanism(an.strategies.Identity(steps), once_a_pass, float(optimizer.noise_multiplier))
    return engine.get_epsilon(choices.delta), truth.epsilon(choices.delta), plain


# -- the command line ------------------------------------------------------------------------------


def prepared(
    model: str, length: int, examples: int, seed: int, passes: int = 10
) -> tuple[nn.Module, Windows]:
    """The base model and its windows; `passes` over the public ones train the small model."""
    torch.manual_seed(seed)
    if model != "small":  # weights and vocabulary from the hub: public
        words = AutoTokenizer.from_pretrained(model)
        data = windows_of(lambda text: words(text)["input_ids"], length=length, examples=examples)
        return AutoModelForCausalLM.from_pretrained(model), data
    encode = trained_tokenizer(texts_of_topics()[name] for name in split_topics()[0])
    data = windows_of(encode, length=length, examples=examples)
    base = small_model(length=length)
    pretrain(base, data.public, passes)
    return base, data


def moved(before: nn.Module, after: nn.Module) -> str:
    """How many numbers were trained, and how far they went, where the base has them under the same name."""
    trained = [p for p in after.parameters() if p.requires_grad]
    size = sum(p.numel() for p in trained)
    old = dict(before.named_parameters())
    pairs = [(p, old[name]) for name, p in after.named_parameters() if name in old]
    if not pairs:
        return f"{size:,} numbers in adapters; the base is as it was"
    far = (
        torch.cat([(p - q).flatten() for p, q in pairs]).norm()
        / torch.cat([q.flatten() for _, q in pairs]).norm()
    )
    return f"{size:,} numbers, by {far.item():.0%} of their norm"


def told(name: str, loss: float) -> str:
    return f"{name:28} held-out loss {loss:.3f}, perplexity {torch.tensor(loss).exp():.1f}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", default="small", help="small, or a name on the hub such as gpt2")
    parser.add_argument("--adapt", choices=("full", "lora"), default="full")
    parser.add_argument("--unit", choices=("example", "owner"), default="example")
    parser.add_argument("--order", choices=("fixed", "drawn"), default="fixed")
    parser.add_argument("--epsilon", type=float, default=8.0)
    parser.add_argument("--delta", type=float, default=1e-5)
    parser.add_argument("--optimizer", choices=("adamw", "sgd", "corrected"), default="corrected")
    parser.add_argument("--mechanism", choices=("auto", "identity"), default="auto")
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--batch-size", type=int, help="windows, or owners, in a step: 128, or 8")
    parser.add_argument("--lr", type=float)
    parser.add_argument("--length", type=int, default=32, help="tokens of a window")
    parser.add_argument("--examples", type=int, default=2560, help="private windows")
    parser.add_argument("--public-passes", type=int, default=10, help="of the small model, before")
    parser.add_argument("--seed", type=int, default=0, help="of the base and the adapters, not of the noise")
    parser.add_argument("--beside-opacus", action="store_true")
    asked = parser.parse_args()
    if asked.beside_opacus and asked.unit == "owner":
        parser.error("--beside-opacus with --unit owner: Opacus has no unit but the example.")
    base, data = prepared(asked.model, asked.length, asked.examples, asked.seed, asked.public_passes)
    size = asked.batch_size or (128 if asked.unit == "example" else 8)
    names = ("adapt", "unit", "order", "epsilon", "delta", "optimizer", "mechanism", "epochs", "seed")
    choices = Choices(**{name: getattr(asked, name) for name in names}, batch_size=size, rate=asked.lr)
    print(told("before", loss_on(base, data.held_out)), flush=True)
    engine, model = finetune(
        base, data, choices, lambda n, one: print(told(f"pass {n}", loss_on(one, data.held_out)), flush=True)
    )
    print(told("after", loss_on(model, data.held_out)))
    print("moved:", moved(base, model))
    statement = str(engine.mechanism).splitlines()
    print(*itertools.islice(statement, 3), sep="\n")
    print(f"epsilon of the {engine.releases} releases made: {engine.get_epsilon(asked.delta):.2f}")
    if asked.beside_opacus:
        stated, holds, model = finetune_by_opacus(base, data, choices)
        print(told("Opacus, the same loader", loss_on(model, data.held_out)))
        print(f"Opacus states epsilon {stated:.2f}, which is that of Poisson sampling.")
        print(f"For its shuffled batches of fixed size the proved one is {holds:.2f}.")


if __name__ == "__main__":
    main()
