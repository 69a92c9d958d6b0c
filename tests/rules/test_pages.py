"""Every block of every page runs as pasted, sentences are short, and links lead somewhere."""

import builtins
import os
import re
import subprocess
import symtable
import sys
from importlib.util import find_spec

import pytest

from tests.marks import in_turn
from tests.rules.pages import LONG, NOTEBOOKS, PAGES, PROOFS, ROOT, anchors, blocks, links, sentences, text_of

#: The test that runs their blocks, and asks what came of them.
ELSEWHERE = {
    "README.md": "tests/rules/test_shown.py",
    "audit.md": "tests/audit/test_own_run.py",
    "choosing.md": "tests/rules/test_shown.py",
    "federated.md": "tests/federated/test_docs.py",
    "fine-tuning.md": "tests/slow/torch/frameworks/test_fine_tuning.py",
    "flower.md": "tests/flower/test_run.py",
    "frameworks.md": "tests/slow/torch/frameworks/test_page.py",
    "linear.md": "tests/slow/linear/test_docs.py",
    "logging.md": "tests/torch/test_logging_page.py",
    "mechanisms.md": "tests/rules/test_shown.py",
    "reviewer.md": "tests/statement/test_statement.py",
    "selecting.md": "tests/torch/test_engine.py",
    "streaming.md": "tests/streaming/test_docs.py",
    "training.md": "tests/torch/test_engine.py",
}
#: What people read first; a page that they come to from there belongs here too.
READ = """
    training clip-norm vision logging speed
    resuming users sharp-edges choosing measured selecting
    mechanisms streaming federated flower fine-tuning frameworks linear audit streaming-operators
    theory papers budget start from-opacus reviewer faq
    index why managers
"""
SHOWN = {page.name: "\n".join(blocks(page)) for page in PAGES if blocks(page)}


def unknown(code):
    """Return the names that the code reads and nothing defines."""
    tables, read, made = [symtable.symtable(code, "page", "exec")], set(), set(dir(builtins))
    while tables:
        table = tables.pop()
        tables += table.get_children()
        for name in table.get_symbols():
            module = table.get_type() == "module"
            if (name.is_assigned() or name.is_imported()) and (module or name.is_declared_global()):
                made.add(name.get_name())
            elif name.is_referenced() and (module or name.is_global()):
                read.add(name.get_name())
    return read - made - {"__name__", "__file__"}


@in_turn("name", SHOWN)
def test_blocks_need_nothing_that_their_page_does_not_define(name):
    assert not unknown(SHOWN[name])
    assert "(..., " not in SHOWN[name] and "(\n    ..., " not in SHOWN[name], "what is left out does not run"


def test_a_name_that_a_page_lacks_is_found():
    assert unknown("def f(a):\n    return a + batch\n") == {"batch"}
    assert unknown("import numpy as np\nx = [np.ones(n) for n in range(3)]\nprint(x, y)\n") == {"y"}


@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name in SHOWN if name not in ELSEWHERE])
def test_blocks_run_in_a_fresh_interpreter_from_the_top_of_their_page(name, tmp_path):
    for package in set(re.findall(r"^(?:from|import) (\w+)", SHOWN[name], flags=re.MULTILINE)):
        if find_spec(package) is None:
            pytest.skip(f"{package} is not installed")
    script = tmp_path / "page.py"
    script.write_text(SHOWN[name], "utf-8")
    paths = os.pathsep.join([str(ROOT / "src"), *filter(None, [os.environ.get("PYTHONPATH")])])
    done = subprocess.run(
        [sys.executable, str(script)],
        cwd=tmp_path,
        env=os.environ | {"PYTHONPATH": paths, "MPLBACKEND": "agg"},
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr[-2000:]


@in_turn("name", ELSEWHERE)
def test_blocks_that_run_elsewhere_are_read_there(name):
    assert name in text_of(ELSEWHERE[name])


@in_turn("name", ["README.md", *(f"docs/{name}.md" for name in READ.split())])
def test_sentences_of_the_pages_that_are_read_most_are_short(name):
    found = list(sentences(text_of(name)))
    long = [sentence for count, sentence in found if count > LONG]
    assert len(found) > 20 and sum(count for count, _ in found) < 15 * len(found)
    assert len(long) <= 0.03 * len(found), "\n".join(long)


def test_words_of_sentences_are_counted():
    def counts(text):
        return [count for count, _ in sentences(text)]

    assert counts("# Title of many words that does not count\n\nOne two three four. " + "Word " * 31) == [
        4,
        31,
    ]
    assert counts("| a b c d e | f g h i |\n- one two three `x y` four\n") == [5, 4, 5]
    assert counts("```python\n" + "word " * 50 + "\n```\nOne two three four.") == [4]


@in_turn("page", [*PAGES, *PROOFS, *NOTEBOOKS])
def test_links_and_pictures_lead_somewhere(page):
    for target, file, anchor in links(page):
        assert file.exists(), target
        assert not anchor or file.suffix != ".md" or anchor in anchors(file), target


def test_the_readme_is_short():
    assert len(text_of("README.md").splitlines()) <= 120
