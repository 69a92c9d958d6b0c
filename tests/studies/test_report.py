import re
from html.parser import HTMLParser

import pytest

pytest.importorskip("matplotlib")

from anechoic.statement.statement import statement_of
from studies.comparison import words
from studies.comparison.report import experiment_page
from tests.studies.examples import example

VOID = {"meta", "link", "br", "hr", "img", "input"}
LOADS = {"src", "href", "data", "action", "poster", "srcset", "xlink:href", "background"}


class Reader(HTMLParser):
    """Checks that tags are closed in order, and keeps texts and whatever could be loaded."""

    def __init__(self):
        super().__init__(convert_charrefs=True)
        self.open, self.text, self.loads, self.tags = [], [], [], []

    def handle_starttag(self, tag, attrs):
        self.tags.append(tag)
        self.loads += [value for name, value in attrs if name in LOADS]
        self.loads += re.findall(r"url\(([^)]*)\)", dict(attrs).get("style") or "")
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag, attrs):
        self.handle_starttag(tag, attrs)
        if tag not in VOID:
            self.open.pop()

    def handle_endtag(self, tag):
        assert self.open and self.open[-1] == tag, f"</{tag}> closes {self.open[-3:]}"
        self.open.pop()

    def handle_data(self, data):
        if self.open and self.open[-1] == "style":
            self.loads += re.findall(r"url\(([^)]*)\)|@import", data)
        self.text.append(data)


def read(html):
    reader = Reader()
    reader.feed(html)
    reader.close()
    assert reader.open == []
    return reader


def text_of(html):
    return " ".join(" ".join(read(html).text).split())


@pytest.fixture(scope="module")
def shown():
    record, mechanisms = example()
    return record, mechanisms, experiment_page(record, mechanisms)


@pytest.mark.slow
def test_loads_nothing(shown):
    reader = read(shown[2])
    assert all(load.startswith(("data:", "#")) for load in reader.loads), reader.loads
    assert "script" not in reader.tags and "iframe" not in reader.tags
    assert "http:" not in shown[2] and "https:" not in shown[2]


def test_headline_states_the_middle_epsilon(shown):
    record, _, html = shown
    sentence = words.headline(record)
    assert sentence == (
        "At ε = 0.3, correlated noise reaches AUC 0.700 where independent noise reaches 0.630;"
        " the same training without noise reaches 0.702."
    )
    assert sentence in text_of(html)


def test_statement_of_every_mechanism_is_there_in_full(shown):
    _, mechanisms, html = shown
    text = text_of(html)
    for mechanism in mechanisms.values():
        for heading, sentence in words.with_keys_from_seeds(statement_of(mechanism)).pairs:
            assert heading in text and " ".join(sentence.split()) in text


def test_says_what_is_outside_the_guarantee(shown):
    record, _, html = shown
    text = text_of(html)
    for sentence in (*words.NOT_COVERED, *words.edges(record)):
        assert sentence in text
    assert "not private, not clipped" in " ".join(words.edges(record))  # its best is the highest rate


def test_titles_and_commands_are_escaped(shown):
    html = shown[2]
    assert "<&>" not in html and "&lt;&amp;&gt;" in html
    assert "anechoic demo --out &#39;a &amp; b&#39;" in html or "&#x27;a &amp; b&#x27;" in html


def test_refuses_mechanisms_of_another_study(shown):
    record, mechanisms, _ = shown
    names = sorted(mechanisms)
    with pytest.raises(ValueError, match="given is none"):
        experiment_page(record, {name: mechanisms[name] for name in names[1:]})
    with pytest.raises(ValueError, match="pass the mechanism files"):
        experiment_page(record, {**mechanisms, names[0]: mechanisms[names[1]]})


def test_study_without_privacy_has_a_headline():
    record, _ = example(steps=20, epsilons=(1.0,))
    record["arms"], record["comparisons"] = record["arms"][:1], []
    assert words.headline(record) == "Without privacy, AUC 0.702."
