import json
import re
from html.parser import HTMLParser
from xml.etree import ElementTree

import pytest

pytest.importorskip("matplotlib")

from anechoic.statement.statement import statement_of
from studies.comparison.report import experiment_page, utility_chart, words
from tests.demo.examples import example

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


@pytest.mark.slow
def test_is_a_whole_document(shown):
    html = shown[2]
    assert html.startswith("<!DOCTYPE html>")
    reader = read(html)
    assert reader.tags.count("title") == 1
    assert "viewport" in html and 'charset="utf-8"' in html
    assert reader.tags.count("img") == 4  # utility, error per step, C and its inverse
    assert reader.tags.count("style") == 1 and len(html) < 500_000


@pytest.mark.slow
def test_utility_chart_is_a_file_of_its_own(shown):
    record, _, _ = shown
    svg = utility_chart(record)
    tree = ElementTree.fromstring(svg)
    assert tree.findtext("{*}title") == "Late flights <&> an example: AUC at the same guarantee"
    assert float(tree.get("width").removesuffix("pt")) > 400
    assert svg == utility_chart(json.loads(json.dumps(record)))


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


def test_every_rate_of_every_arm_is_there_and_the_best_stands_out(shown):
    record, _, html = shown
    best = re.findall(r'<td class="best">([^<]*)</td>', html)
    assert best == [words.reached(arm) for arm in record["arms"]]
    for arm in record["arms"]:
        for entry in arm["rates"]:
            assert f"{entry['mean']:.4f}" in html


def test_says_what_is_outside_the_guarantee(shown):
    record, _, html = shown
    text = text_of(html)
    for sentence in (*words.NOT_COVERED, *words.edges(record)):
        assert sentence in text
    assert "not private, not clipped" in " ".join(words.edges(record))  # its best is the highest rate


def test_titles_and_commands_are_escaped(shown):
    html = shown[2]
    assert "<&>" not in html and "&lt;&amp;&gt;" in html
    assert "anechoic demo --out &#x27;a &amp; b&#x27;" in html


@pytest.mark.slow
def test_reads_the_record_as_written_to_a_file(shown):
    record, mechanisms, html = shown
    assert experiment_page(json.loads(json.dumps(record)), mechanisms) == html


def test_refuses_mechanisms_of_another_study(shown):
    record, mechanisms, _ = shown
    names = sorted(mechanisms)
    with pytest.raises(ValueError, match="given is none"):
        experiment_page(record, {name: mechanisms[name] for name in names[1:]})
    with pytest.raises(ValueError, match="pass the mechanism files"):
        experiment_page(record, {**mechanisms, names[0]: mechanisms[names[1]]})


@pytest.mark.slow
def test_study_without_comparison_still_makes_a_page():
    record, mechanisms = example(steps=20, epsilons=(1.0,))
    record["arms"] = [arm for arm in record["arms"] if arm["kind"] != "independent"]
    record["comparisons"] = []
    text = text_of(experiment_page(record, mechanisms))
    assert (
        "At ε = 1, the planned mechanism reaches AUC 0.6700 ± 0.0030; the same training without"
        " noise reaches 0.702." in text
    )


def test_study_without_privacy_has_a_headline():
    record, _ = example(steps=20, epsilons=(1.0,))
    record["arms"], record["comparisons"] = record["arms"][:1], []
    assert words.headline(record) == "Without privacy, AUC 0.702."
