"""docs/coverage.csv has every number of the papers once; what it and ATTACKS.md name is there."""

import csv
import re
from collections import defaultdict

import pytest

from tests.marks import in_turn
from tests.rules.pages import ROOT, can_be_reached, text_of

PAGE = text_of("docs/papers.md")
ROWS = list(csv.DictReader(text_of("docs/coverage.csv").splitlines()))
#: How many sections the chapters of 002 have, the monograph, whose notation comes first.
SECTIONS = {1: 11, 2: 12, 3: 7, 4: 6, 5: 10}
#: The last number of each series that a paper counts: every one from 1 to it has a row, in order.
#: Definitions, theorems, problems, … share one series, which has no name here.
LAST = {
    "002": (
        "Table 2, Figure 1.8, 1.27, Algorithm 1.3, 2.29, Table 2.3, Algorithm 2.2, Figure 2.6, Figure 3.13, "
        "3.22, Algorithm 3.2, Figure 4.5, 4.16, Table 4.1, Question 5.10, 5.1"
    ),
    "000": "Algorithm 1, 1.2, 2.2, 3.1, Table 4, Figure 4, C.24, D.15, E.1, F.22",
    "001": "2, 2.5, Algorithm 1, Table 1, 4.4, 5.5, A.4, B.3, C.2, D.1",
    "004": "Figure 6, 2.2, 3.3, 4.7, A.1, C.3, Table 2",
}
APPENDICES = {
    "002": "",
    "000": "A.1 A.2 B C.5 C.6 D.3 D.4 G.1 G.2",
    "001": "",
    "004": "D E F G A.1 A.2 B H.1 H.2",
}
NAMED = ("Algorithm", "Table", "Figure", "Question")
CLAIMS = ("Theorem ", "Lemma ", "Proposition ", "Corollary ")
NOT_HERE = "not here: "


def rows(**columns):
    """Return (number, where, checked by) of the rows that have these values."""
    return [
        (row["number"], row["where"], row["checked by"])
        for row in ROWS
        if all(row[key] == value for key, value in columns.items())
    ]


def numbered(**columns):
    return [row for row in rows(**columns) if not row[0].startswith("Section")]


def names(text):
    return re.findall(r"`([^`]+)`", text)


def resolve(name):
    """Import a dotted name, or find a file, and a function in it."""
    if name.startswith(("anechoic", "studies.")):
        assert can_be_reached(name), name
        return
    path, _, function = name.partition("#")[0].partition("::")
    assert (ROOT / path).is_file(), f"{name}: there is no such file"
    found = re.search(rf"^\s*def {function}\(", text_of(path), re.MULTILINE)
    assert not function or found, f"{name}: no such function"


def test_every_attack_has_tests_and_they_exist():
    table = text_of("tests/ATTACKS.md").split("# Attacks that are out of scope")[0]
    attacks = [line for line in table.splitlines() if line.startswith("| ")][1:]
    assert len(attacks) >= 16
    for attack in attacks:
        tests = re.findall(r"`(tests/[\w/]+\.py::\w+)`", attack.split(" | ")[-1])
        assert tests, attack
        for test in tests:
            resolve(test)


def test_every_section_of_the_contents_is_there_once_and_says_something():
    chapters = [f"{chapter}.{n}" for chapter, count in SECTIONS.items() for n in range(1, count + 1)]
    found = list(dict.fromkeys(row["section"] for row in ROWS if row["paper"] == "002"))
    assert found == ["0", *chapters]
    for section in chapters:
        assert all(number.split()[1].startswith(section[0]) for number, *_ in rows(section=section))


@pytest.mark.parametrize("paper", LAST)
def test_every_number_of_a_paper_has_one_row(paper):
    found, appendices = defaultdict(list), []
    for number, *_ in numbered(paper=paper):
        kind, _, place = number.partition(" ")
        if kind == "Appendix":
            appendices.append(place)
            continue
        part, _, count = place.rpartition(".")
        found[kind if kind in NAMED else "", part].append(int(count))
    assert appendices == APPENDICES[paper].split()
    assert all(counts == list(range(1, len(counts) + 1)) for counts in found.values()), found
    last = [
        f"{kind} {part}.{counts[-1]}".replace(" .", " ").strip(" .") for (kind, part), counts in found.items()
    ]
    assert sorted(last) == sorted(LAST[paper].split(", "))


@pytest.mark.parametrize("paper", LAST)
def test_the_page_names_what_is_not_here(paper):
    section = re.split(r"^##+ ", PAGE.split(f"### {paper}")[1], flags=re.MULTILINE)[0]
    part = section.split("**Not here.**")[1]
    named = set(re.findall(r"\b(?:[A-H]\.)?\d+(?:\.\d+)?\b", part))
    missing = [
        number
        for number, where, _ in numbered(paper=paper)
        if where.startswith(NOT_HERE) and number.split()[1] not in named
    ]
    assert not missing


def test_what_is_false_links_to_an_erratum():
    errata = text_of("docs/errata.md")
    for number, where, _ in rows():
        assert "docs/errata.md" in where or not re.search(r"\bfalse\b|refuted", where), number
        for entry in re.findall(r"\b([MP]\d+)\b", where):
            assert f"| {entry} |" in errata, entry


def test_every_row_says_where_or_why_not_and_names_the_test_of_what_code_claims():
    """Pages need none, nor figures of `benchmarks/monograph`, which take minutes."""
    claims = 0
    for number, where, checked in numbered():
        if where.startswith(NOT_HERE):
            assert len(where) > len(NOT_HERE) + 10, number
            continue
        assert names(where), number
        made = re.search(r"`(anechoic|studies|benchmarks/figures|benchmarks/tables)", where)
        claims += number.startswith(CLAIMS)
        if number.startswith(CLAIMS) or (number.startswith(NAMED[:3]) and made):
            assert names(checked), f"{number}: which test checks it?"
        for name in names(checked):
            assert name.startswith("tests/") and "::test_" in name, f"{number}: {name}"
    assert claims > 80


def test_every_name_exists():
    parts = PAGE.split("## What is implemented")[1].split("## Which figures")[0]
    found = {name for row in rows() for name in names(" ".join(row))} | set(names(parts))
    assert len(found) > 200
    for name in sorted(found):
        resolve(name)


MISSING = "anechoic.nowhere anechoic.strategies.Nothing docs/nowhere.md benchmarks/figures.py::figure_9_9"


@in_turn("name", MISSING.split())
def test_what_does_not_exist_is_noticed(name):
    with pytest.raises(AssertionError):
        resolve(name)
