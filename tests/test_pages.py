"""Every block of every page runs as pasted, sentences are short, and links lead somewhere."""

import builtins
import os
import re
import subprocess
import symtable
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

from tests import prose

ROOT = Path(__file__).resolve().parents[1]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
#: The test that runs their blocks, and asks what came of them.
ELSEWHERE = {
    "README.md": "tests/test_readme.py",
    "audit.md": "tests/audit/test_own_run.py",
    "choosing.md": "tests/test_readme.py",
    "extending.md": "tests/test_extending.py",
    "federated.md": "tests/federated/test_docs.py",
    "fine-tuning.md": "tests/torch/frameworks/test_fine_tuning.py",
    "flower.md": "tests/flower/test_page.py",
    "frameworks.md": "tests/torch/frameworks/test_page.py",
    "linear.md": "tests/slow/linear/test_docs.py",
    "mechanisms.md": "tests/test_readme.py",
    "releases.md": "tests/test_releases_page.py",
    "selecting.md": "tests/torch/test_engine.py",
    "statement.md": "tests/statement/test_statement.py",
    "streaming.md": "tests/streaming/test_docs.py",
    "theory.md": "tests/theory/test_page.py",
    "training.md": "tests/torch/test_engine.py",
}


def blocks(page):
    return re.findall(r"^```python\n(.*?)^```", page.read_text("utf-8"), flags=re.DOTALL | re.MULTILINE)


def unknown(code):
    """Names that the code reads and nothing defines."""
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


SHOWN = {page.name: "\n".join(blocks(page)) for page in PAGES if blocks(page)}


@pytest.mark.parametrize("name", SHOWN)
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
    ranks = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]  # as that page starts it
    done = subprocess.run(
        [sys.executable, *(ranks if "init_process_group" in SHOWN[name] else []), str(script)],
        cwd=tmp_path,
        env=os.environ | {"PYTHONPATH": paths, "MPLBACKEND": "agg"},
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr[-2000:]


@pytest.mark.parametrize("name", ELSEWHERE)
def test_blocks_that_run_elsewhere_are_read_there(name):
    assert name in (ROOT / ELSEWHERE[name]).read_text("utf-8")


@pytest.mark.parametrize("name", prose.READ)
def test_sentences_of_the_pages_that_are_read_most_are_short(name):
    number, mean, share = prose.measured((ROOT / name).read_text("utf-8"))
    long = [
        f"{count}: {text}"
        for count, text in prose.sentences((ROOT / name).read_text("utf-8"))
        if count > prose.LONG
    ]
    assert number > 20 and mean < 15 and share <= 0.03, "\n".join(long)


def test_long_sentences_are_counted():
    text = "# Title of many words that does not count\n\nOne two three four. " + "Word " * 31 + "end.\n"
    assert prose.measured(text) == (2, 18.0, 0.5)
    assert [
        count for count, _ in prose.sentences("| a b c d e | f g h i |\n- one two three `x y` four\n")
    ] == [5, 4, 5]
    assert prose.measured("```python\n" + "word " * 50 + "\n```\nOne two three four.")[0] == 1


def anchors(page):
    """The anchors of headings, as GitHub makes them."""
    text = re.sub(r"^```.*?^```", "", page.read_text("utf-8"), flags=re.DOTALL | re.MULTILINE)
    for title in re.findall(r"^#+ (.+)$", text, flags=re.MULTILINE):
        yield re.sub(r"[^\w\- ]", "", re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", title).lower()).replace(
            " ", "-"
        )


@pytest.mark.parametrize(
    "page", [*PAGES, *sorted((ROOT / "docs" / "proofs").glob("*.md"))], ids=lambda page: page.name
)
def test_links_and_pictures_lead_somewhere(page):
    text = re.sub(r"^```.*?^```", "", page.read_text("utf-8"), flags=re.DOTALL | re.MULTILINE)
    for target in re.findall(r"\]\(([^)\s]+)\)", text):
        if re.match(r"[a-z]+:", target):
            continue
        file, _, anchor = target.partition("#")
        other = (page.parent / file).resolve() if file else page
        assert other.exists(), target
        assert not anchor or other.suffix != ".md" or anchor in anchors(other), target
