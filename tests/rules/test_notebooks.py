"""Notebooks are text: each has its parts, and runs from the top with pictures that words describe."""

import ast
import difflib
import importlib.util
import re
import warnings

import pytest

from tests.marks import in_turn
from tests.rules.pages import DOCS, NOTEBOOKS, blocks, text_of, without_code

#: What a notebook imports besides what every environment of the tests has.
NEEDS = {"01": ["sklearn"], "02": ["sklearn"]}
#: Packages that warn of themselves where a notebook cannot help it.
OTHERS = "torch|opacus|dp_accounting"
#: What draws a picture that is the last line of a cell.
DRAWING = re.compile(r"^(?:line_figure\(|shown\(|[\w.\[\]0]+\.plot\()", re.MULTILINE)


def run(page):
    """Run the cells one after another; what notebooks show below each: its last line, if that is a value."""
    names, shown = {"__name__": "__main__"}, []
    for number, cell in enumerate(blocks(page), start=1):
        tree, where = ast.parse(cell), f"{page.name}, cell {number}"
        last = tree.body.pop() if isinstance(tree.body[-1], ast.Expr) else None
        exec(compile(tree, where, "exec"), names)
        if last is not None:
            shown.append(eval(compile(ast.Expression(last.value), where, "eval"), names))
    return shown


def test_there_are_five_in_an_order():
    assert [page.name[:2] for page in NOTEBOOKS] == [f"0{number}" for number in range(1, 6)]


@in_turn("page", NOTEBOOKS)
def test_a_notebook_has_its_parts(page):
    text, code = text_of(page), "\n".join(blocks(page))
    titles = re.findall(r"^#+ (.*)", without_code(text), re.MULTILINE)
    assert titles[0].startswith(f"Notebook {int(page.name[:2])}: ")
    assert titles[-3:] == ["Which line counts?", "Exercises", "Where do I read on?"]
    before, exercises = text.split("## Exercises")
    counted = before.split("## Which line counts?")[1]
    assert "print(" in counted, "the line that counts is printed, not told"
    assert re.findall(r"^(\d)\. ", exercises, flags=re.MULTILINE) == ["1", "2"]
    assert len(re.findall(r"\]\([\w./-]+\.md\)", exercises.split("## Where do I read on?")[1])) >= 2
    for cell in blocks(page):
        ast.parse(cell)
    assert "pyplot" not in code, "pictures come from the library, in one style and with words"
    assert len(DRAWING.findall(code)) >= 2


def test_two_lines_of_the_opacus_script_change():
    before, after = (cell for cell in blocks(NOTEBOOKS[1]) if "def script" in cell)
    lines = difflib.ndiff(before.splitlines(), after.splitlines())
    changed = [line for line in lines if line[:2] in ("- ", "+ ")]
    assert len(changed) == 4 and all(" import " in line for line in changed)


@in_turn("page", NOTEBOOKS)
def test_a_notebook_becomes_an_ipynb_of_its_cells(page):
    there = importlib.util.spec_from_file_location("site_notebooks", DOCS / "_site/notebooks.py")
    site = importlib.util.module_from_spec(there)
    there.loader.exec_module(site)
    made = site.notebook(text_of(page))
    assert [one["source"] + "\n" for one in made["cells"] if one["cell_type"] == "code"] == blocks(page)
    prose = "\n".join(one["source"] for one in made["cells"] if one["cell_type"] == "markdown")
    assert "```python" not in prose and ".md)" not in prose and ".html)" in prose
    if importlib.util.find_spec("nbformat"):
        importlib.import_module("nbformat").validate(made)


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("page", NOTEBOOKS, ids=lambda page: page.stem)
def test_a_notebook_runs_and_words_say_what_its_pictures_show(page, tmp_path, monkeypatch):
    for package in ("matplotlib", *NEEDS.get(page.name[:2], [])):
        pytest.importorskip(package)
    monkeypatch.chdir(tmp_path)
    with warnings.catch_warnings():  # an error each, by the settings of the tests
        for kind in (DeprecationWarning, FutureWarning):
            warnings.filterwarnings("ignore", category=kind, module=OTHERS)
        shown = run(page)
    pictures = [one for one in shown if hasattr(one, "savefig")]
    assert len(pictures) >= 2
    for picture in pictures:
        words = re.findall(r'<img class="chart" alt="([^"]+)"', picture._repr_html_())
        assert len(words) == 1 and len(words[0].split()) >= 6
