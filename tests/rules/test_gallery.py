"""docs/papers.md shows or lists each table and figure with data, by commands that exist."""

import re

from studies.published.exhibits import EXHIBITS, TRAINED, TRAINED_ON_TEXT
from tests.rules.pages import DOCS, ROOT, text_of
from tests.rules.test_coverage_page import NOT_HERE, PAGE, ROWS

GALLERY = PAGE.split("## Which figures")[1].split("\n## ")[0]


def covered():
    """(paper, exhibit) of the coverage, without those that are not here, nor notation."""
    return {
        (row["paper"], row["number"])
        for row in ROWS
        if row["number"].startswith(("Figure", "Table"))
        and not row["where"].startswith((NOT_HERE, "`docs/notation.md`"))
    }


def listed():
    """(paper, exhibit): command, of the list below the pictures."""
    found = re.findall(r"^\| (00\d), ((?:Figure|Table) [\d.]+) \| ([^|]*) \|", GALLERY, flags=re.MULTILINE)
    return {(paper, exhibit): command for paper, exhibit, command in found}


def pictures():
    return re.findall(r"!\[([^\]]+)\]\(([^)]+)\)", GALLERY)


def captions():
    """Figures of the monograph that have a caption under a picture."""
    return re.findall(r"\| \[Figure ([\d.]+)\]", GALLERY)


def test_every_exhibit_with_data_is_shown_or_listed():
    shown = {("002", f"Figure {number}") for number in captions()}
    assert covered() == shown | set(listed())
    assert len(covered()) > 30


def test_every_picture_is_shown_once_and_says_what_it_shows():
    images = DOCS / "images"
    drawn = [*images.glob("monograph/*.svg"), *images.glob("theory/*.svg")]
    drawn.remove(images / "theory" / "spectra.svg")  # on the page of theory
    assert sorted(DOCS / path for _, path in pictures()) == sorted(drawn)
    assert all(len(alternative.split()) > 5 for alternative, _ in pictures())


def test_commands_name_what_there_is():
    drawn = text_of("benchmarks/figures.py").split('"""')[1]
    assert all(re.search(rf"\b{re.escape(number)}\b", drawn) for number in captions())
    names = EXHIBITS.keys() | TRAINED.keys() | TRAINED_ON_TEXT.keys()
    for command in listed().values():
        if study := re.match(r"`(00\d-[\w-]+)", command):
            assert study[1] in names, command
        else:
            assert command in ("`make tables`", "prose") or command.startswith("`python benchmarks/"), command
            for script in re.findall(r"benchmarks/\w+\.py", command):
                assert (ROOT / script).is_file()
