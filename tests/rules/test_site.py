"""Each check of the built site sees the fault that it is for; the site itself is checked by make docs."""

import importlib
import inspect
import sys
from pathlib import Path

import pytest

from tests.marks import in_turn
from tests.rules.site import LARGEST, WHOLE, called, faults, outward

GOOD = (
    '<html lang="en"><h1 id="top">A</h1><h2>B</h2><img src="a.svg" alt="a curve"><a href="#top">up</a>'
    '<a href="https://example.org/x">out</a></html>'
)


@pytest.fixture
def site(tmp_path):
    folder = tmp_path / "site"
    folder.mkdir()
    (folder / "searchindex.js").write_text("")
    (folder / "llms.txt").write_text("- [A](index.html): a page.")
    (folder / "index.html").write_text(GOOD)
    return folder


def test_a_good_page_has_no_fault(site):
    assert list(faults(site)) == []
    assert outward(site) == ["https://example.org/x"]


@pytest.mark.parametrize(
    "before, after, said",
    [
        ('lang="en"', "", "says no language"),
        ("<h2>B</h2>", "<h3>B</h3>", "level 1 to one of level 3"),
        ("<h2>B</h2>", "<h1>B</h1>", "2 titles"),
        ('alt="a curve"', 'alt=" "', "without a text"),
        (' alt="a curve"', "", "without a text"),
        ("a.svg", "https://example.org/a.svg", "loads https://example.org/a.svg"),
        ("#top", "#bottom", "no such place"),
        ("#top", "other.html", "not there"),
        ("https://example.org/x", "https://nowhere/x", "no address"),
        ("https://example.org/x", "ftp://example.org/x", "no address"),
        ("</html>", '<script src="//example.org/s.js"></script></html>', "loads //example.org"),
        ("</html>", '<link rel="stylesheet" href="http://example.org/s.css"></html>', "loads http://"),
        ("</html>", " " * LARGEST + "</html>", "more than"),
    ],
)
def test_a_fault_of_a_page_is_found(site, before, after, said):
    assert before in GOOD
    (site / "index.html").write_text(GOOD.replace(before, after))
    assert any(said in fault for _, fault in faults(site))


def test_a_name_that_the_reference_lacks_is_found(site):
    ids = [
        name for path, thing in WHOLE.items() for name in (path, *(f"{path}.{one}" for one in called(thing)))
    ]
    (site / "api").mkdir()
    for lacking in ([], ["anechoic.torch.PrivacyEngine.get_epsilon"], ["anechoic.planning.result.Plan"]):
        shown = "".join(f'<p id="{name}">' for name in ids if name not in lacking)
        (site / "api" / "a.html").write_text(f'<html lang="en"><h1>A</h1>{shown}</html>')
        assert list(faults(site)) == [("api", f"has no entry for {name}") for name in lacking]


@in_turn("path", WHOLE)
def test_the_reference_says_each_name_of_a_class_and_of_its_base_classes(path):
    pytest.importorskip("sphinx")
    sys.path.append(str(Path(__file__).resolve().parents[2] / "docs" / "_site"))
    reference = importlib.import_module("reference")
    thing = WHOLE[path]
    listed = {thing: path}
    stop = reference.entry(path, thing, listed)[1].rpartition(":")[2].replace(" ", "").split(",")
    said = [base for base in thing.__mro__ if base.__name__ not in stop]
    assert {name for base in said for name in vars(base)} >= set(called(thing))
    assert [name for name in called(thing) if not inspect.getdoc(getattr(thing, name))] == []


def test_a_sheet_that_loads_and_a_list_that_leads_nowhere_are_found(site):
    (site / "a.css").write_text("@font-face { src: url(https://example.org/f.woff2) }")
    (site / "llms.txt").write_text("- [A](gone.md): a page.")
    assert [name for name, _ in faults(site)] == ["a.css", "gone.md"]
