"""The page of errata and the tests belong together."""

import re
from pathlib import Path

HERE = Path(__file__).parent
PAGE = HERE.parents[1] / "docs" / "errata.md"


def test_every_entry_has_a_test_and_every_test_an_entry():
    entries = set(re.findall(r"^\| ([MP]\d+) \|", PAGE.read_text(encoding="utf-8"), flags=re.MULTILINE))
    sources = "".join(path.read_text(encoding="utf-8") for path in HERE.glob("test_*.py"))
    tests = {name.upper() for name in re.findall(r"^def test_([mp]\d+)_", sources, flags=re.MULTILINE)}
    assert entries == tests
    assert len(entries) >= 36
