"""The gallery has every table and figure of the papers that holds data, with commands that exist."""

import re

from studies.published.exhibits import EXHIBITS, TRAINED, TRAINED_ON_TEXT
from tests.rules.pages import DOCS, ROOT, text_of

PAGE = text_of("docs/gallery.md")


def covered():
    """(paper, exhibit) of the page of coverage, without those that are not here, nor notation."""
    found = set()
    for page in sorted(DOCS.glob("coverage*.md")):
        paper = "002"
        for line in text_of(page).splitlines():
            if head := re.match(r"## (00\d): ", line):
                paper = head[1]
            row = re.match(r"\| ((?:Figure|Table) [\d.]+) \| (.*)", line)
            if row and not row[2].startswith(("not here", "`docs/notation.md`")):
                found.add((paper, row[1]))
    return found


def listed():
    """(paper, exhibit): command, of the gallery."""
    found, paper = {}, ""
    for line in PAGE.splitlines():
        if head := re.match(r"## .*\((00\d)", line):
            paper = head[1]
        elif paper and (row := re.match(r"\| ((?:Figure|Table) [\d.]+) \| ([^|]*) \|", line)):
            found[paper, row[1]] = row[2]
    return found


def test_every_exhibit_with_data_is_listed():
    assert covered() == set(listed())
    assert len(covered()) > 30


def test_commands_name_what_there_is():
    drawn = text_of("benchmarks/figures.py").split('"""')[1]
    names = EXHIBITS.keys() | TRAINED.keys() | TRAINED_ON_TEXT.keys()
    for command in listed().values():
        if figure := re.match(r"`python benchmarks/figures.py ([\d.]+)`", command):
            assert re.search(rf"\b{re.escape(figure[1])}\b", drawn), command
        elif study := re.match(r"`python -m studies papers ([\w-]+)", command):
            assert study[1] in names, command
        else:
            assert command == "`make tables`" or command.startswith(("`python benchmarks/", "none")), command
            for script in re.findall(r"benchmarks/\w+\.py", command):
                assert (ROOT / script).is_file()
