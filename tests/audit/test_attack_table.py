"""ATTACKS.md: every attack has a test, and every test that it names exists."""

import ast
import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def functions_of(path):
    tree = ast.parse((ROOT / path).read_text(encoding="utf-8"))
    return {node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)}


def test_every_attack_has_tests_and_they_exist():
    page = (ROOT / "tests" / "ATTACKS.md").read_text(encoding="utf-8")
    table = page.split("# Attacks that are out of scope")[0]
    rows = [line for line in table.splitlines() if line.startswith("| ")][1:]
    assert len(rows) >= 16
    for row in rows:
        named = re.findall(r"`(tests/[\w/]+\.py)::(\w+)`", row.split(" | ")[-1])
        assert named, row
        for path, name in named:
            assert name in functions_of(path), (path, name)
