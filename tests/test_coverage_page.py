"""docs/coverage.md and coverage-papers.md: every number of the papers once, and nothing that is not there."""

import importlib
import re
from pathlib import Path

import pytest

from tests.marks import in_turn

ROOT = Path(__file__).resolve().parents[1]
PAGE, OTHERS = (
    (ROOT / "docs" / name).read_text(encoding="utf-8") for name in ("coverage.md", "coverage-papers.md")
)

# Sections of its table of contents, and what is numbered in them, in the order of the text. Where a number
# only occurs in a citation of another work it is not one of these.
NUMBERED = {
    "0": "Table 1, Table 2",  # of notation, before the text
    "1.1": (
        "Figure 1.1, Definition 1.1, Definition 1.2, Definition 1.3, Definition 1.4, Definition 1.5, "
        "Lemma 1.6, Lemma 1.7"
    ),
    "1.2": "Algorithm 1.1, Algorithm 1.2, Figure 1.2, Remark 1.8, Remark 1.9, Remark 1.10",
    "1.3": (
        "Figure 1.3, Algorithm 1.3, Figure 1.4, Theorem 1.11, Lemma 1.12, Lemma 1.13, Theorem 1.14, "
        "Figure 1.5"
    ),
    "1.4": "Figure 1.6, Remark 1.15, Remark 1.16, Remark 1.17, Figure 1.7",
    "1.5": "Figure 1.8",
    "1.6": "",
    "1.7": "Definition 1.18, Lemma 1.19, Theorem 1.20, Definition 1.21, Remark 1.22",
    "1.8": "Definition 1.23, Definition 1.24, Lemma 1.25",
    "1.9": "",
    "1.10": "Example 1.26, Example 1.27",
    "1.11": "",
    "2.1": "Definition 2.1, Theorem 2.2, Definition 2.3",
    "2.2": "Table 2.1, Theorem 2.4",
    "2.3": "Theorem 2.5, Remark 2.6, Theorem 2.7, Remark 2.8, Lemma 2.9, Definition 2.10, Theorem 2.11",
    "2.4": "Definition 2.12, Algorithm 2.1, Theorem 2.13, Figure 2.1, Remark 2.14",
    "2.5": "Remark 2.15, Lemma 2.16, Algorithm 2.2, Lemma 2.17, Theorem 2.18, Remark 2.19",
    "2.6": "Figure 2.2",
    "2.7": "Figure 2.3, Theorem 2.20",
    "2.8": "Definition 2.21, Theorem 2.22, Definition 2.23, Lemma 2.24",
    "2.9": "Figure 2.4, Lemma 2.25, Theorem 2.26, Figure 2.5, Definition 2.27, Figure 2.6, Theorem 2.28",
    "2.10": "Lemma 2.29",
    "2.11": "Table 2.2, Table 2.3",
    "2.12": "",
    "3.1": "Figure 3.1, Example 3.1, Example 3.2",
    "3.2": "Figure 3.2, Remark 3.3",
    "3.3": (
        "Figure 3.3, Figure 3.4, Algorithm 3.1, Remark 3.4, Figure 3.5, Definition 3.5, Definition "
        "3.6, Figure 3.6, Definition 3.7, Lemma 3.8, Theorem 3.9, Figure 3.7, Lemma 3.10, Proposition "
        "3.11, Definition 3.12, Figure 3.8, Definition 3.13, Definition 3.14, Figure 3.9, Lemma 3.15, "
        "Lemma 3.16, Remark 3.17, Figure 3.10, Figure 3.11, Algorithm 3.2, Figure 3.12, Definition "
        "3.18, Lemma 3.19"
    ),
    "3.4": "Definition 3.20, Theorem 3.21",
    "3.5": "Theorem 3.22, Figure 3.13",
    "3.6": "",
    "3.7": "",
    "4.1": "Figure 4.1, Remark 4.1",
    "4.2": (
        "Lemma 4.2, Problem 4.3, Theorem 4.4, Figure 4.2, Corollary 4.5, Problem 4.6, Conjecture 4.7, "
        "Problem 4.8, Proposition 4.9, Remark 4.10, Remark 4.11"
    ),
    "4.3": "Problem 4.12, Figure 4.3, Lemma 4.13, Figure 4.4, Lemma 4.14, Table 4.1",
    "4.4": "Figure 4.5, Remark 4.15, Remark 4.16",
    "4.5": "",
    "4.6": "",
    "5.1": "Question 5.1",
    "5.2": "Question 5.2",
    "5.3": "Question 5.3",
    "5.4": "Question 5.4",
    "5.5": "Question 5.5",
    "5.6": "Question 5.6",
    "5.7": "Question 5.7",
    "5.8": "Question 5.8",
    "5.9": "Theorem 5.1, Question 5.9",
    "5.10": "Question 5.10",
}
# What is numbered in the other papers, main text first where it is torn, and appendices.
PAPERS = {
    "000": (
        "Algorithm 1, Theorem 1.1, Remark 1.2, Theorem 2.1, Theorem 2.2, Theorem 3.1, Table 1, Table "
        "2, Table 3, Table 4, Figure 1, Figure 2, Figure 3, Figure 4, Property C.1, Assumption C.2, "
        "Property C.3, Lemma C.4, Corollary C.5, Lemma C.6, Property C.7, Property C.8, Property C.9, "
        "Proposition C.10, Proposition C.11, Lemma C.12, Proposition C.13, Theorem C.14, Theorem "
        "C.15, Remark C.16, Assumption C.17, Theorem C.18, Proposition C.19, Proposition C.20, Lemma "
        "C.21, Proposition C.22, Remark C.23, Proposition C.24, Assumption D.1, Property D.2, "
        "Definition D.3, Theorem D.4, Proposition D.5, Proposition D.6, Proposition D.7, Proposition "
        "D.8, Lemma D.9, Lemma D.10, Theorem D.11, Lemma D.12, Theorem D.13, Corollary D.14, "
        "Corollary D.15, Theorem E.1, Definition F.1, Theorem F.2, Theorem F.3, Definition F.4, "
        "Property F.5, Lemma F.6, Remark F.7, Property F.8, Property F.9, Property F.10, Property "
        "F.11, Lemma F.12, Lemma F.13, Lemma F.14, Lemma F.15, Lemma F.16, Lemma F.17, Lemma F.18, "
        "Lemma F.19, Lemma F.20, Lemma F.21, Lemma F.22, "
        "Appendix A.1, Appendix A.2, Appendix B, Appendix C.5, Appendix C.6, Appendix D.3, Appendix D.4, "
        "Appendix G.1, Appendix G.2"
    ),
    "001": (
        "Problem 1, Problem 2, Definition 2.1, Definition 2.2, Definition 2.3, Lemma 2.4, Lemma 2.5, "
        "Algorithm 1, Table 1, Theorem 4.1, Corollary 4.2, Theorem 4.3, Theorem 4.4, Theorem 5.1, "
        "Lemma 5.2, Proposition 5.3, Theorem 5.4, Theorem 5.5, Theorem A.1, Lemma A.2, Theorem A.3, "
        "Theorem A.4, Proposition B.1, Theorem B.2, Fact B.3, Lemma C.1, Theorem C.2, Theorem D.1 "
    ),
    "004": (
        "Figure 1, Example 2.1, Problem 2.2, Example 3.1, Example 3.2, Example 3.3, Assumption 4.1, "
        "Assumption 4.2, Assumption 4.3, Proposition 4.4, Proposition 4.5, Theorem 4.6, Theorem 4.7, "
        "Figure 2, Figure 3, Example A.1, Figure 4, Figure 5, Figure 6, Lemma C.1, Lemma C.2, Lemma "
        "C.3, Appendix D, Appendix E, Appendix F, Appendix G, Table 1, Table 2, "
        "Appendix A.1, Appendix A.2, Appendix B, Appendix H.1, Appendix H.2"
    ),
}
NOT_HERE = "not here: "


def sections():
    """number -> text of a section."""
    parts = re.split(r"^### ([\d.]+) .*$", PAGE, flags=re.MULTILINE)
    return dict(
        zip(
            parts[1::2], (re.split(r"^## ", text, flags=re.MULTILINE)[0] for text in parts[2::2]), strict=True
        )
    )


def rows(text):
    """(number, where) of each row."""
    return [row[:2] for row in cells(text)]


def cells(text):
    """(number, where, checked by) of each row."""
    number = r"[A-Z][a-z]+ (?:[A-H](?:\.\d+)?|[\d.]+)"
    return re.findall(rf"^\| ({number}) \| ([^|]+) \| ?([^|]*?) ?\|$", text, flags=re.MULTILINE)


def names(text):
    return re.findall(r"`([^`]+)`", text)


def resolve(name):
    """Import a dotted name, or find a file, and a function in it."""
    if not name.startswith(("anechoic", "studies.")):
        path, _, function = name.partition("::")
        assert (ROOT / path).is_file(), f"{name}: there is no such file"
        found = re.search(rf"^\s*def {function}\(", (ROOT / path).read_text(encoding="utf-8"), re.MULTILINE)
        assert not function or found, f"{name}: no such function"
        return
    parts = name.split(".")
    for count in range(len(parts), 0, -1):
        try:
            found = importlib.import_module(".".join(parts[:count]))
        except ModuleNotFoundError:
            continue
        for attribute in parts[count:]:
            assert hasattr(found, attribute) or attribute in getattr(found, "__annotations__", {}), name
            found = getattr(found, attribute, None)
        return
    raise AssertionError(f"{name}: no such module")


def test_every_section_of_the_contents_is_there_once_and_in_order():
    headings = re.findall(r"^### ([\d.]+) ", PAGE, flags=re.MULTILINE)
    assert headings == list(NUMBERED)


@in_turn("section", NUMBERED)
def test_every_number_is_in_its_section_once(section):
    listed = [number for number, _ in rows(sections()[section])]
    assert listed == [number for number in NUMBERED[section].split(", ") if number]


def test_numbers_are_nowhere_else():
    expected = [number for listed in NUMBERED.values() for number in listed.split(", ") if number]
    assert len(set(expected)) == len(expected) == 150
    assert sorted(number for number, _ in rows(PAGE)) == sorted(expected)


@pytest.mark.parametrize("paper", PAPERS)
def test_every_number_of_a_paper_is_in_its_table_once(paper):
    tables = dict(re.findall(r"^## (\d{3}): (.*?)(?=^## |\Z)", OTHERS, flags=re.MULTILINE | re.DOTALL))
    assert list(tables) == list(PAPERS)
    assert ", ".join(number for number, _ in rows(tables[paper])) == PAPERS[paper].strip()


def test_what_is_false_links_to_an_erratum():
    errata = (ROOT / "docs" / "errata.md").read_text(encoding="utf-8")
    for number, where in rows(PAGE + OTHERS):
        assert "docs/errata.md" in where or not re.search(r"\bfalse\b|refuted", where), number
        for entry in re.findall(r"\b([MP]\d+)\b", where):
            assert f"| {entry} |" in errata, entry


def test_every_row_says_where_or_why_not():
    for number, where in rows(PAGE + OTHERS):
        assert names(where) or where.startswith(NOT_HERE), number
        assert not where.startswith(NOT_HERE) or len(where) > len(NOT_HERE) + 10, number


def test_every_theorem_names_the_test_that_checks_it():
    claims = ("Theorem ", "Lemma ", "Proposition ", "Corollary ")
    counted = 0
    for number, where, checked in cells(PAGE + OTHERS):
        if not number.startswith(claims) or where.startswith(NOT_HERE):
            continue
        counted += 1
        assert names(checked), f"{number}: which test checks it?"
        for name in names(checked):
            path, _, function = name.partition("::")
            assert path.startswith("tests/") and function.startswith("test_"), f"{number}: {name}"
            resolve(name)
    assert counted > 80


def test_every_algorithm_table_and_figure_that_code_makes_names_a_test():
    """Pages have none, nor figures of `benchmarks/monograph`, which take minutes."""
    without = [
        number
        for number, where, checked in cells(PAGE + OTHERS)
        if number.startswith(("Algorithm ", "Table ", "Figure "))
        and not where.startswith(NOT_HERE)
        and re.search(r"`(anechoic|studies|benchmarks/figures|benchmarks/tables)", where)
        and not names(checked)
    ]
    for _, _, checked in cells(PAGE + OTHERS):
        for name in names(checked):
            assert name.startswith("tests/") and "::test_" in name
    assert without == []


def test_every_section_says_something():
    for section, text in sections().items():
        assert rows(text) or names(text), section


def test_every_name_exists():
    found = {name for name in names(PAGE + OTHERS) if name not in ("anechoic", "::")}
    found -= {"python -m studies train --damped"}  # a command
    assert len(found) > 200
    for name in sorted(found):
        resolve(name)


@pytest.mark.parametrize(
    "name",
    [
        "anechoic.nowhere",
        "anechoic.strategies.Nothing",
        "docs/nowhere.md",
        "benchmarks/figures.py::figure_9_9",
    ],
)
def test_what_does_not_exist_is_noticed(name):
    with pytest.raises(AssertionError):
        resolve(name)
