import argparse
import json
import subprocess
import sys
import time
from importlib.util import find_spec

import pytest

from anechoic import _patience, cli
from anechoic.cli import commands, parser, progress, values
from anechoic.mechanism.mechanism import Mechanism
from anechoic.planning.compare import STRATEGIES, plan
from anechoic.workloads import momentum

# without random sampling: calibrating amplified mechanisms takes seconds
PLAN = ["plan", "--examples", "10000", "--batch-size", "100", "--epochs", "2", "--epsilon", "1"]
PLAN += ["--delta", "1e-6", "--no-random-sampling"]


def run(capsys, *arguments):
    """(exit code, stdout, stderr) of a command in this process."""
    try:
        code = cli.main([str(argument) for argument in arguments])
    except SystemExit as stop:  # argparse
        code = stop.code
    shown = capsys.readouterr()
    return code, shown.out, shown.err


@pytest.mark.slow
def test_plan_prints_the_table_and_the_reason(capsys):
    given = "plan --examples 400 --batch-size 100 --steps 4 --epsilon 1 --delta 1e-6"
    code, out, err = run(capsys, *given.split())
    assert (code, err) == (0, "")
    assert "→" in out and "Identity" in out and "Chosen:" in out
    assert "CyclicPoisson" in out and "--why has the reasons." in out and "σ is" not in out
    code, out, err = run(capsys, *given.split(), "--why")
    assert "σ is the noise std" in out and "Every row keeps epsilon = 1" in out and "--why" not in out


@pytest.mark.slow
def test_plan_without_random_sampling_saves_a_mechanism_that_explain_reads(capsys, tmp_path):
    file = tmp_path / "mechanism.json"
    code, out, _ = run(capsys, *PLAN, "--json", file)
    assert code == 0 and "FixedOrder" in out and "CyclicPoisson" not in out and str(file) in out
    mechanism = Mechanism.from_json(file.read_text())
    assert mechanism.steps == 200 and mechanism.epsilon() <= 1

    code, out, err = run(capsys, "explain", file)
    assert (code, err) == (0, "")
    assert out.rstrip("\n") == mechanism.report()


@pytest.mark.slow
def test_plan_takes_a_promise_a_memory_budget_and_several_batch_sizes(capsys):
    given = "--batch-size 50 100 --steps 40 --epsilon 2 --delta 1e-5 --min-sep 16 --max-participations 2"
    given += " --dimension 1_000_000 --memory-budget 32MB --unit client --adjacency replace_one"
    code, out, _ = run(capsys, *PLAN[:3], *given.split(), "--clip-norm", "0.5", "--all", "--why")
    assert code == 0 and "External" in out and "BLT" in out
    assert "participations of one unit are at least 16 steps apart" in " ".join(out.split())
    table = out.split("\n\n")[0]
    assert "bands=8" in table and "bands=16" not in table  # 32 MB hold 8 rows of a million floats, and not 16
    batch_sizes = {line.split()[-7] for line in out.splitlines() if " External " in line}
    assert len(batch_sizes) > 0 and " 50 " in out and " 100 " in out


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (["--epsilon", "0"], "epsilon"),
        (["--delta", "1"], "delta"),
        (["--batch-size", "20000"], "batch_size"),
        (["--max-participations", "2"], "--min-sep"),
        (["--memory-budget", "1GB"], "dimension"),
        (["--json", "/no/such/folder/m.json"], "/no/such/folder/m.json cannot be written"),
    ],
)
def test_bad_values_are_one_clear_line_and_exit_code_2(capsys, change, said):
    code, _, err = run(capsys, *PLAN, *change)
    assert code == 2
    assert err.startswith("anechoic plan: ") and err.count("\n") == 1 and said in err
    assert "Traceback" not in err


@pytest.mark.parametrize(
    "arguments",
    [
        [],
        ["nonsense"],
        ["plan"],
        [*PLAN, "--examples", "many"],
        [*PLAN, "--batch-size", "0"],
        [*PLAN, "--memory-budget", "2 parsecs"],
        [*PLAN, "--steps", "10"],  # and --epochs
        ["demo", "--jobs", "0"],
    ],
)
def test_bad_arguments_are_exit_code_2(capsys, arguments):
    code, out, err = run(capsys, *arguments)
    assert code == 2 and out == "" and "error:" in err


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"{}", "not a mechanism file"),
        (b"{", "not a mechanism file"),
        (b"\xff\xfe\x00", "not a mechanism file"),
        (b"SQLite format 3\x00\xff", "run its command again with --statement html=FILE"),
    ],
)
def test_explain_refuses_a_bad_file(capsys, tmp_path, content, said):
    file = tmp_path / "bad.json"
    file.write_bytes(content)
    code, out, err = run(capsys, "explain", file)
    assert (code, out) == (2, "")
    assert said in err and err.count("\n") == 1


@pytest.mark.slow
def test_explain_refuses_an_edited_file_and_a_missing_one(capsys, tmp_path):
    file = tmp_path / "m.json"
    run(capsys, *PLAN, "--json", file)
    record = json.loads(file.read_text())
    record["noise_std"] *= 0.5
    file.write_text(json.dumps(record))
    code, _, err = run(capsys, "explain", file)
    assert code == 2 and "edited" in err
    code, _, err = run(capsys, "explain", tmp_path / "none.json")
    assert code == 2 and "No such file" in err and err.count("\n") == 1


def test_sizes_and_counts_are_read_as_they_are_written():
    assert [values.size(text) for text in ("2GB", "512 MiB", "1.5kB", "7")] == [2 * 10**9, 2**29, 1500, 7]
    assert [values.count(text) for text in ("1e6", "2.5e3", "1_000", "1,000")] == [10**6, 2500, 1000, 1000]
    for text in ("1.5", "1e-3", "2.55e1", "nan", "1e", "0e5", "1e999"):
        with pytest.raises(argparse.ArgumentTypeError):
            values.count(text)


def test_missing_extras_are_named(capsys, monkeypatch):
    monkeypatch.setattr(progress, "find_spec", lambda name: None if name == "torch" else find_spec(name))
    code, _, err = run(capsys, "demo")
    assert code == 2 and "pip install 'anechoic[demo]'" in err and err.count("\n") == 1


def test_what_cannot_be_written_or_read_is_named_before_the_work(capsys, monkeypatch, tmp_path):
    monkeypatch.setattr("anechoic.planning.compare.plan", lambda **options: pytest.fail("planned in vain"))
    for place, said in ((tmp_path / "none" / "m.json", "No such file"), (tmp_path, "Is a directory")):
        code, _, err = run(capsys, *PLAN, "--json", place)
        assert code == 2 and f"{place} cannot be written" in err and said in err
    page = tmp_path / "README.md"
    page.write_text("# no mechanism")
    for command in ("explain", "audit"):
        code, _, err = run(capsys, command, page)
        assert code == 2 and err.startswith(f"anechoic {command}: {page}: this is not a mechanism file"), err


def test_plan_writes_a_page_and_refuses_other_files_before_the_work(capsys, monkeypatch, tmp_path):
    pytest.importorskip("matplotlib")
    page, alone = tmp_path / "plan.html", [*PLAN, "--mechanism", "identity"]
    code, out, _ = run(capsys, *alone, "--out", page)
    assert code == 0 and f"Saved: {page}" in out
    text = page.read_text(encoding="utf-8")
    assert "Chosen: Identity, FixedOrder, B = 100" in text and "anechoic plan --examples 10000" in text
    monkeypatch.setattr("anechoic.planning.compare.plan", lambda **options: pytest.fail("planned in vain"))
    code, _, err = run(capsys, *alone, "--out", tmp_path / "plan.pdf")
    assert code == 2 and "plan.pdf ends in '.pdf', and a plan is written as .html, .svg, .png" in err
    code, _, err = run(capsys, *alone, "--out", tmp_path / "none" / "plan.svg")
    assert code == 2 and "name a file in a folder that is there" in err
    monkeypatch.setattr(progress, "find_spec", lambda name: None)
    code, _, err = run(capsys, *alone, "--out", page)
    assert code == 2 and "pip install 'anechoic[plot]'" in err


def test_a_delta_that_promises_nothing_is_said(capsys):
    code, out, err = run(
        capsys, *PLAN[:8], "1", "--delta", "0.001", "--no-random-sampling", "--mechanism", "identity"
    )
    assert code == 0 and "Chosen" in out
    said = "delta=0.001 is at least 1/N for N=10000 examples"
    assert err.startswith(f"anechoic plan: {said}")
    assert out.splitlines()[-1].startswith(f"Not to be relied on: {said}")


def test_what_takes_long_says_so_once_on_a_terminal(capsys, monkeypatch):
    monkeypatch.setattr(_patience, "PATIENCE", 0.0)

    @_patience.patience("thinking")
    def think():
        with _patience.patience("calibrating"):
            time.sleep(0.05)

    for terminal in (True, False, True):
        monkeypatch.setattr(sys.stderr, "isatty", lambda shown=terminal: shown, raising=False)
        think()
        said = "anechoic: thinking; this can take minutes. Ctrl-C stops it.\n"
        assert capsys.readouterr().err == (said if terminal else "")


def test_planning_and_calibrating_say_what_takes_long_wherever_they_are_called(capsys, monkeypatch):
    monkeypatch.setattr(_patience, "PATIENCE", -1.0)
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True, raising=False)
    setting = {"examples": 100, "batch_size": 10, "steps": 10, "epsilon": 1.0, "delta": 1e-6}
    plan(**setting, random_sampling=False, strategy="identity")
    assert capsys.readouterr().err.startswith("anechoic: comparing mechanisms; this can take minutes.")


def test_interrupting_is_not_an_error_of_the_program(capsys, monkeypatch):
    def interrupted(options):
        raise KeyboardInterrupt

    monkeypatch.setattr(commands, "explain", interrupted)
    code, _, err = run(capsys, "explain", "x")
    assert code == 130 and err == "anechoic explain: stopped.\n"


@pytest.mark.slow
def test_a_reader_that_has_seen_enough_is_no_error(tmp_path):
    assert cli.main([*PLAN, "--json", str(tmp_path / "m.json")]) == 0
    explained = f"{sys.executable} -m anechoic explain {tmp_path / 'm.json'}"
    command = explained + " | head -n 1; exit ${PIPESTATUS[0]}"
    done = subprocess.run(["bash", "-c", command], capture_output=True, text=True, check=False)
    assert done.stderr == ""
    assert done.returncode == 0


def test_a_budget_is_granted_and_shown_without_polars(tmp_path):
    book = str(tmp_path / "b.db")
    code = f"""
import os, sys
sys.modules["polars"] = None
os.environ["KEY"] = "ab" * 32
from anechoic import cli
where, grant = [{book!r}, "--key-env", "KEY"], ["--epsilon", "1", "--delta", "1e-6"]
assert cli.main(["budget", "grant", {book!r}, "flights", *grant, *where[1:]]) == 0
assert cli.main(["budget", "show", *where]) == 0
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0 and done.stdout.count("'flights': (1.0, 1e-06) per example") == 2, done.stderr


@pytest.mark.parametrize("command", ["plan", "stream"])
def test_help_begins_with_an_example_that_is_read_and_a_sentence(capsys, command):
    code, out, _ = run(capsys, command, "--help")
    usage, blank, sentence, *_ = out.splitlines()
    assert code == 0 and usage.startswith(f"usage: anechoic {command} --") and blank == ""
    assert sentence[0].isupper() and sentence.endswith(".")
    parser.parser_of_all().parse_args(usage.removeprefix("usage: anechoic ").split())


@pytest.mark.slow
def test_plan_takes_every_name_optimizer_and_noise_multiplier_of_the_library(capsys):
    assert parser.STRATEGIES == STRATEGIES
    setting = ["plan", "--examples", "200", "--batch-size", "20", "--delta", "1e-5", "--no-random-sampling"]
    assert cli.main([*setting, "--epochs", "1", "2", "--epsilon", "4", "--optimizer", "adam", "--why"]) == 0
    printed = capsys.readouterr().out
    assert "Adam divides by the noise of a step" in " ".join(printed.split())
    assert cli.main([*setting, "--epochs", "2", "--noise-multiplier", "1.5", "--why"]) == 0
    assert "every row keeps it" in " ".join(capsys.readouterr().out.split())
    setting += ["--epochs", "2", "--epsilon", "4", "--momentum", "0.9"]
    assert cli.main([*setting, "--optimizer", "adam"]) == 2
    assert "is of SGD" in capsys.readouterr().err
    assert cli.main([*setting, "--mechanism", "blt"]) == 0
    assert f"{_of_momentum():.4g}" in capsys.readouterr().out


def _of_momentum() -> float:
    """The predicted error of the chosen row of the same setting."""
    return plan(
        examples=200, batch_size=20, delta=1e-5, random_sampling=False, epochs=2, epsilon=4.0, strategy="blt",
        workload=lambda n: momentum(n, 0.9),
    ).chosen.predicted  # fmt: skip
