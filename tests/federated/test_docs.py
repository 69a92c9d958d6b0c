"""What the page shows runs, and statements say what they must."""

import ast
import doctest
import importlib
import re
import sys
from pathlib import Path

import numpy as np
import pytest

from anechoic import federated
from tests.federated.small import run_round, small_server

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.slow
def test_the_page_runs(tmp_path, monkeypatch, capsys):
    # bound to a few rounds, so that it is quick
    code = re.findall(r"```python\n(.*?)```", (ROOT / "docs" / "federated.md").read_text("utf-8"), re.DOTALL)
    assert len(code) == 1

    names = {}  # complete as pasted
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(federated.Server, "finished", property(lambda server: server.step >= 3))
    exec(code[0], names)
    server = names["server"]
    assert server.step == 3 and server.report().replies == 3 * 50
    text = capsys.readouterr().out
    assert "150 asked, 150 times in all, none more than 1 time; nobody twice" in text
    assert "3 of 40 rounds" in text
    server.shut()


@pytest.mark.parametrize("name", ["flat_parameters", "grid", "planning"])
def test_docstring_examples_run(name):
    found = doctest.testmod(importlib.import_module(f"anechoic.federated.{name}"))
    assert found.attempted and not found.failed


def test_a_statement_says_what_is_enforced_seen_trusted_and_left_open():
    server = small_server(federated.MinSeparation(2, 3))
    assert "nobody was asked yet" in server.statement()
    for _ in range(4):
        run_round(server, range(7))
    text = server.statement()
    seen = server.report().ledger
    assert seen.most == 2 and seen.nearest == 2
    assert "none more than 2 times; two of one at least 2 steps apart" in text
    for words in (
        "one client: all its updates",
        "at least 2 steps apart, at most 3 times. Enforced by MinSeparation",
        "4 of 9 rounds",
        "norm at most 0.5",
        "divided by 3",
        "before the server optimiser",
        "with every update as it comes",
        "Not protected",
        "sensitivity.md#federated-rounds, under 'Proofs' in the documentation",
        server.mechanism.fingerprint,
    ):
        assert words in text, words
    for words in ("anechoic.torch", "journal", "checkpoint", "state directory, which holds noise"):
        assert words not in text, f"{words}: not of this server"
    assert "the run ends with this server" in " ".join(text.split())
    assert "Replies" not in text  # what clients sent is not for publication


NO_UPDATE = "an error or nothing readable in place of an update"


def test_a_report_says_what_happened():
    server = small_server(min_replies=2)
    run_round(server, range(3), silent=2)
    asked = server.ask(range(2))
    asked.add(asked.clients[0], None)
    asked.add(asked.clients[1], np.zeros(5))
    server.close(asked)
    report = server.report()
    assert (report.released, report.short) == (1, 1)
    assert report.replies == 3 and report.refused == {NO_UPDATE: 1, "no update on the grid": 1}
    assert (report.ledger.clients, report.ledger.participations) == (3, 3)
    assert 0 < report.epsilon <= server.mechanism.epsilon() and report.delta == 1e-6
    assert "1 short" in str(report)
    assert f"3; refused: 1 x {NO_UPDATE}, 1 x no update on the grid" in str(report)


def test_the_room_needs_no_framework():
    allowed = {"numpy", "anechoic"}
    for path in (ROOT / "src" / "anechoic" / "federated").glob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            names += [node.module or ""] if isinstance(node, ast.ImportFrom) else []
            tops = {name.partition(".")[0] for name in names} - allowed
            assert tops <= sys.stdlib_module_names, f"{path.name} imports {tops}"
            assert not any(name.startswith(("anechoic.torch", "anechoic.flower")) for name in names)


def test_a_plot_marks_the_rounds_released():
    pytest.importorskip("matplotlib")
    server = small_server(federated.MinSeparation(2, 3))
    run_round(server, range(9))
    mark = server.plot().axes[1].get_lines()[1]
    assert mark.get_xdata()[0] == server.step == 1
