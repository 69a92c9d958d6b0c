import json
from importlib.util import find_spec

import pytest

from anechoic.cli import progress
from anechoic.mechanism.mechanism import Mechanism
from studies.__main__ import main
from studies.federated import deployments
from studies.walks import PAGE, page

needs_torch = pytest.mark.skipif(find_spec("torch") is None, reason="needs the extras")


def run(capsys, *arguments):
    """(exit code, stdout, stderr) of a command in this process."""
    try:
        code = main([str(argument) for argument in arguments])
    except SystemExit as stop:  # argparse
        code = stop.code
    shown = capsys.readouterr()
    return code, shown.out, shown.err


def test_missing_extras_are_named(capsys, monkeypatch):
    monkeypatch.setattr(progress, "find_spec", lambda name: None if name == "torch" else find_spec(name))
    code, _, err = run(capsys, "train", "--data", "flights")
    assert code == 2 and "pip install 'anechoic[demo]'" in err and err.count("\n") == 1


def test_bad_arguments_are_exit_code_2(capsys):
    code, out, err = run(capsys, "train", "--data", "cifar")
    assert code == 2 and out == "" and "error:" in err


def test_exhibits_are_listed(capsys):
    code, out, _ = run(capsys, "papers", "--list")
    assert code == 0 and "000-2" in out and "004-3" in out


@needs_torch
def test_bounds_are_for_time_order(capsys, tmp_path):
    code, _, err = run(capsys, "train", "--sampling", "poisson", "--limit", "2", "--out", tmp_path / "out")
    assert code == 2 and "--limit: bounds are for time order" in err and err.count("\n") == 1
    assert not (tmp_path / "out").exists()


@needs_torch
@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--epsilon", "1"], "--epsilon with --deployments"),
        (["--quick", "--rounds", "9"], "--rounds, --quick with --deployments"),
        (["--out", "elsewhere", "--clients-per-round", "3"], "--clients-per-round, --out with"),
    ],
)
def test_published_settings_take_no_options(capsys, monkeypatch, arguments, said):
    monkeypatch.setattr(deployments, "deployments_text", lambda: "table")
    code, out, err = run(capsys, "federate", "--deployments", *arguments)
    assert (code, out) == (2, "") and said in err
    assert run(capsys, "federate", "--deployments")[:2] == (0, "table\n")


@pytest.mark.slow  # test_aircraft runs the study of aircraft every time
@needs_torch
def test_train_by_aircraft_shows_its_statement_beside_that_of_a_flight(capsys, tmp_path, monkeypatch):
    monkeypatch.setattr("studies.train.QUICK_FLIGHTS", 5_120)
    arguments = ["train", "--data", "flights", "--unit", "tail", "--quick", "--lr", "1", "--jobs", "1"]
    code, shown, err = run(capsys, *arguments, "--out", tmp_path)
    assert code == 0, err
    assert "| fixed | aircraft | 1 |" in shown and "An aircraft takes part in at most" in shown
    assert "Group privacy would say" in shown and "for the aircraft that moves it most" in shown
    arms = json.loads((tmp_path / "results.json").read_text())["arms"]
    private = [arm for arm in arms if arm["mechanism"]]
    units = [Mechanism.from_json(arm["mechanism"]["json"]).unit for arm in private]
    assert units == [arm["unit"] for arm in private] == ["example"] * 2 + ["aircraft"] * 2


@pytest.mark.slow
@needs_torch
def test_the_walks_of_the_page_are_those_of_the_code():
    text = PAGE.read_text("utf-8")
    assert page(text) == text, "python -m studies.walks --write"
