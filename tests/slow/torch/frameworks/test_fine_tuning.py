"""docs/fine-tuning.md and examples/finetune.py, run small."""

import importlib
import re
import runpy
import sys
from itertools import combinations
from pathlib import Path

import pytest
import torch

ROOT = Path(__file__).resolve().parents[4]
PAGE = (ROOT / "docs" / "fine-tuning.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"```python\n(.*?)```", PAGE, flags=re.DOTALL)
SCRIPT = ROOT / "examples" / "finetune.py"
for package in ("transformers", "peft", "tokenizers"):
    pytest.importorskip(package, reason="make test-all installs it")
pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("default")]


@pytest.fixture(autouse=True)
def beside_the_script(monkeypatch, tmp_path):
    monkeypatch.syspath_prepend(str(SCRIPT.parent))
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.delitem(sys.modules, "finetune", raising=False)


@pytest.fixture
def example(monkeypatch):
    module = importlib.import_module("finetune")
    monkeypatch.setattr(module, "pretrain", lambda *args, **options: None)  # the tests measure no loss
    return module


@pytest.fixture
def small(example):
    """An untrained base, and 96 private windows."""
    return example.prepared("small", 16, 96, 0)


def test_the_page_runs_as_it_stands_but_smaller(example, capsys):
    scope = {}
    for block in BLOCKS:
        exec(block.replace("examples=2560", "examples=256").replace("batch_size=128", "batch_size=32"), scope)
    engine = scope["engine"]
    assert engine.releases == engine.mechanism.steps == 24
    assert 7 < engine.get_epsilon(1e-5) <= 8
    assert not engine.mechanism.amplified
    assert "Privacy unit:  one example" in capsys.readouterr().out
    # what is saved is what was trained: the base with its adapters in it
    rows = scope["data"].held_out[:4]
    with torch.no_grad():
        kept, trained, base = (
            scope[name].eval()(input_ids=rows).logits for name in ("again", "tuned", "base")
        )
    assert torch.allclose(kept, trained, atol=1e-4)
    assert not torch.allclose(kept, base, atol=1e-4)
    # one topic is what the second run protects
    assert scope["by_topic"].mechanism.unit == "topic"
    assert scope["stated"] <= 8 < scope["holds"]


def test_a_private_window_belongs_to_its_topic_and_topics_to_one_part(example):
    public, private, held_out = (set(names) for names in example.split_topics())
    assert len(public | private | held_out) == len(public) + len(private) + len(held_out)
    data = example.windows_of(lambda text: [*text.encode()], length=16, examples=500)
    assert len(data.private) == len(data.owners) == 500
    for row, owner in zip(data.private.tolist(), data.owners, strict=True):
        assert owner in private and bytes(row) in example.texts_of_topics()[owner].encode()
    assert len(set(data.owners)) > 20


def test_no_paragraph_is_on_two_topics(example):
    texts = example.texts_of_topics()
    assert sorted(texts) == sorted(example.topics)
    of = {name: {" ".join(p.split()) for p in text.split("\n\n")} - {""} for name, text in texts.items()}
    assert not [(a, b) for a, b in combinations(of, 2) if of[a] & of[b]]
    # nothing else is lost
    everything = {" ".join(p.split()) for text in example.topics.values() for p in text.split("\n\n")}
    assert set().union(*of.values()) == everything - {""}


def test_windows_are_cut_from_these_texts(example):
    """One letter a token: every window is text of a topic as it is kept."""
    texts = example.texts_of_topics()
    data = example.windows_of(lambda text: [ord(c) for c in text], length=40, examples=10**6)
    parts = zip((data.public, data.private, data.held_out), example.split_topics(), strict=True)
    for rows, names in parts:
        together = "\0".join(texts[name] for name in names)
        assert len(rows) == sum(len(texts[name]) // 40 for name in names)
        assert all("".join(map(chr, row)) in together for row in rows[::97].tolist())


def test_the_tokenizer_is_made_of_the_text_that_it_is_given(example):
    encode = example.trained_tokenizer(iter(["wibble wobble " * 50]), vocabulary=300)
    assert len(encode("wibble")) < len(encode("garble"))  # merged, where it was seen
    texts = []
    example.trained_tokenizer = lambda given: texts.extend(given) or (lambda text: [1] * len(text))
    example.prepared("small", 16, 96, 0)
    assert sorted(texts) == sorted(example.texts_of_topics()[name] for name in example.split_topics()[0])


@pytest.mark.parametrize("optimizer", ["adamw", "sgd", "corrected"])
@pytest.mark.parametrize("adapt", ["full", "lora"])
def test_every_optimizer_moves_what_it_should(example, small, adapt, optimizer):
    base, data = small
    choices = example.Choices(adapt=adapt, optimizer=optimizer, batch_size=32, epochs=1)
    engine, model = example.finetune(base, data, choices)
    assert engine.releases == 3 and 7 < engine.get_epsilon(1e-5) <= 8
    moved = {name for name, p in model.named_parameters() if p.requires_grad}
    assert moved == {name for name, _ in model.named_parameters() if adapt == "full" or "lora_" in name}
    frozen = {
        name.replace("base_model.model.", "").replace(".base_layer", ""): p
        for name, p in model.named_parameters()
    }
    for name, p in base.named_parameters():
        assert torch.equal(p, frozen[name]) == (adapt == "lora"), name


@pytest.mark.parametrize("order", ["fixed", "drawn"])
def test_the_order_and_the_mechanism_are_those_asked_for(example, small, order):
    choices = example.Choices(order=order, mechanism="identity", batch_size=32, epochs=2)
    engine, _ = example.finetune(*small, choices)
    assert engine.mechanism.amplified == (order == "drawn")
    assert type(engine.mechanism.strategy).__name__ == "Identity"


def test_opacus_s_epsilon_is_smaller_than_the_one_that_its_loader_has(example, small):
    stated, holds, _ = example.finetune_by_opacus(*small, example.Choices(batch_size=32, optimizer="adamw"))
    assert stated <= 8 < holds


@pytest.mark.parametrize("more", [[], ["--unit", "owner", "--adapt", "lora"]])
def test_the_command_line(monkeypatch, capsys, more):
    arguments = ["--examples", "128", "--length", "16", "--epochs", "1", "--public-passes", "0", *more]
    if not more:
        arguments += ["--batch-size", "32"]
    monkeypatch.setattr(sys, "argv", [str(SCRIPT), *arguments])
    runpy.run_path(str(SCRIPT), run_name="__main__")
    printed = capsys.readouterr().out
    assert f"Privacy unit:  one {'topic' if more else 'example'}" in printed
    assert "held-out loss" in printed and "moved:" in printed and "releases made" in printed


def test_opacus_has_no_owners(monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", [str(SCRIPT), "--beside-opacus", "--unit", "owner"])
    with pytest.raises(SystemExit):
        runpy.run_path(str(SCRIPT), run_name="__main__")
    assert "no unit but the example" in capsys.readouterr().err
