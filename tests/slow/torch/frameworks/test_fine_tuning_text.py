"""The text of examples/finetune.py: what is held out was not trained on, and what a topic owns is its own."""

import importlib
import sys
from itertools import combinations
from pathlib import Path

import pytest

for package in ("transformers", "peft", "tokenizers"):
    pytest.importorskip(package, reason="make test-all installs it")
pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("default")]


@pytest.fixture
def example(monkeypatch):
    monkeypatch.syspath_prepend(str(Path(__file__).resolve().parents[4] / "examples"))
    monkeypatch.delitem(sys.modules, "finetune", raising=False)
    return importlib.import_module("finetune")


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
