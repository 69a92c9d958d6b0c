"""Attacks on the book: races, kills, edits, second units, copies, and runs that go on."""

import hmac
import json
import re
import shlex
import shutil
import signal
import sqlite3
import subprocess
import sys
from pathlib import Path

import pytest

import anechoic as an
from anechoic import cli, streaming
from anechoic.budget import BudgetBook
from anechoic.cli.parser import parser_of_all
from anechoic.errors import CheckpointError, GuaranteeError, MismatchError
from anechoic.participation import Single
from anechoic.sampling import External
from anechoic.strategies import Identity


def mechanism(epsilon=1.0, steps=8, **options):
    sampling = External(Single(), 1, steps)
    return an.calibrate(Identity(steps), sampling=sampling, epsilon=epsilon, delta=1e-6, **options)


def granted(place, epsilon=1.0, **options):
    book = BudgetBook(place, "visits", who="me", key=options.pop("key", None))
    book.grant(epsilon, 1e-6, **options)
    return book


#: What a process of its own does: {0} is the place, {1} Python that goes before the end.
WORKER = """
import os, signal, sys
from anechoic.budget import BudgetBook
from anechoic.errors import GuaranteeError
book = BudgetBook(sys.argv[1], "visits", who=sys.argv[2])
{}
"""
RACER = """
sys.stdin.readline()
for _ in range(8):
    try:
        book.reserve((0.1, 0.0)).spend()
        print("won")
    except GuaranteeError:
        print("lost")
"""


def process(place, code, who="other"):
    command = [sys.executable, "-c", WORKER.format(code), place, who]
    return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)


class TestAttacks:
    @pytest.mark.slow
    def test_two_processes_race_for_the_last_epsilon(self, place):
        book = granted(place, amplified=(0.55, 0.0))  # five of sixteen
        racers = [process(place, RACER, who) for who in ("ann", "bob")]
        for racer in racers:
            racer.stdin.write("\n")
            racer.stdin.flush()
        said = "".join(racer.communicate()[0] for racer in racers).split()
        assert len(said) == 16 and said.count("won") == 5
        assert len(book.account().live) == 5
        with pytest.raises(GuaranteeError, match="does not cover"):
            book.reserve((0.1, 0.0))

    @pytest.mark.slow
    def test_a_kill_between_reserve_and_spend_leaves_the_charge(self, place):
        book = granted(place, amplified=(0.5, 0.0))
        killed = process(place, "book.reserve((0.4, 0.0), run='x'); os.kill(os.getpid(), signal.SIGKILL)")
        killed.communicate()
        assert killed.returncode == -signal.SIGKILL
        (one,) = book.account().live
        assert (one.who, one.run, one.status) == ("other", "x", "reserved")
        with pytest.raises(GuaranteeError):
            book.reserve((0.2, 0.0))
        book.reserve((0.4, 0.0), run="x").spend()  # the run goes on: not charged twice
        assert [each.status for each in book.account().live] == ["spent"]

    @pytest.mark.slow
    def test_a_kill_inside_a_transaction_leaves_nothing_half(self, place):
        book = granted(place, amplified=(0.5, 0.0))
        code = "with book._open() as (_, of):\n    book._add(of, kind='spend', token='none')\n    os._exit(9)"
        killed = process(place, code)
        killed.communicate()
        assert killed.returncode == 9
        assert not book.account().runs
        book.reserve((0.5, 0.0)).spend()

    def test_a_reservation_is_given_back_before_it_is_spent_alone(self, place):
        book = granted(place)
        first = book.reserve(mechanism())
        with pytest.raises(GuaranteeError, match="does not cover"):
            book.reserve(mechanism())
        book.cancel(first.token)
        second = book.reserve(mechanism())
        second.spend()
        for token in (first.token, second.token, "none"):
            with pytest.raises(GuaranteeError, match="only one that is reserved"):
                book.cancel(token)
        with pytest.raises(GuaranteeError, match="cancelled"):
            first.spend()  # its charge is another run's now

    def test_a_second_unit_is_refused(self, place):
        book = granted(place, 8.0)
        with pytest.raises(MismatchError, match="one user"):
            book.reserve(mechanism(unit="user"))
        with pytest.raises(MismatchError, match="a name of its own"):
            book.grant(8.0, 1e-6, unit="user")
        other = BudgetBook(place, "visits by user")
        other.grant(1.0, 1e-6, unit="user")
        other.reserve(mechanism(unit="user")).spend()
        assert not book.account().live
        with pytest.raises(GuaranteeError, match="nothing was granted for 'labs'"):
            BudgetBook(place, "labs").reserve(mechanism())

    def test_a_run_is_charged_once_and_keeps_its_mechanism(self, place):
        book = granted(place, 1.2)
        token = book.reserve(mechanism(), run="a").token
        assert book.reserve(mechanism(), run="a").token == token
        book.check(mechanism())  # it may be the run that goes on
        with pytest.raises(GuaranteeError, match="does not cover"):
            book.check(mechanism(0.9))
        with pytest.raises(MismatchError, match="keeps its mechanism"):
            book.reserve(mechanism(0.1), run="a")
        assert len(book.account().live) == 1

    @pytest.mark.parametrize("cost", [mechanism(), (0.3, 1e-7)], ids=["mechanism", "pair"])
    def test_the_name_of_a_spent_run_covers_no_other(self, tmp_path, cost):
        """The attack: one name every week, charged once."""
        book = granted(tmp_path / "b.db", 4.0, amplified=(1.0, 5e-7))
        late = book.reserve(cost, run="weekly")
        book.reserve(cost, run="weekly").spend()
        with pytest.raises(GuaranteeError, match="is spent: only one"):
            late.spend()
        with pytest.raises(GuaranteeError, match="one run was charged"):
            book.reserve(cost, run="weekly")
        assert [one.status for one in book.account().live] == ["spent"]


def edited(path, change):
    with sqlite3.connect(path) as connection:
        rows = connection.execute("SELECT place, body, link FROM budget ORDER BY place").fetchall()
        connection.execute("DELETE FROM budget")
        connection.executemany("INSERT INTO budget VALUES (?, ?, ?)", change(rows))
    connection.close()


def cheaper(body):
    entry = json.loads(body)
    entry["charge"]["mu"] = 1e-9
    return json.dumps(entry, sort_keys=True)


def linked(link, body):
    return hmac.digest(b"anechoic budget 1", f"{link}\n{body}".encode(), "sha256").hex()


def linked_again(rows):
    """All links after the edit as whoever has no key would make them."""
    link, found = "anechoic budget 1", []
    for place, body, _ in rows:
        link = linked(link, body)
        found.append((place, body, link))
    return found


EDITS = {
    "a cheaper charge": lambda rows: [rows[0], (1, cheaper(rows[1][1]), rows[1][2]), *rows[2:]],
    "a row less": lambda rows: [rows[0], *rows[2:]],
    "a row less, counted again": lambda rows: [rows[0], *((p - 1, b, k) for p, b, k in rows[2:])],
    "two rows exchanged": lambda rows: [rows[0], (1, *rows[2][1:]), (2, *rows[1][1:]), *rows[3:]],
}


class TestEdits:
    @pytest.mark.parametrize("edit", EDITS.values(), ids=EDITS)
    @pytest.mark.parametrize("key", [None, b"k" * 32])
    def test_an_edited_row_is_seen(self, tmp_path, edit, key):
        path = str(tmp_path / "b.db")
        book = granted(path, 4.0, key=key)
        for _ in range(2):
            book.reserve(mechanism()).spend()
        edited(path, edit)
        with pytest.raises(CheckpointError, match="is not what was written"):
            book.reserve(mechanism(0.1))
        with pytest.raises(CheckpointError):
            book.show()

    def test_links_cannot_be_made_without_the_key(self, tmp_path):
        path = str(tmp_path / "b.db")
        book = granted(path, 4.0, key=b"k" * 32)
        book.reserve(mechanism()).spend()
        edited(path, lambda rows: linked_again([rows[0], (1, cheaper(rows[1][1]), ""), rows[2]]))
        with pytest.raises(CheckpointError):
            book.account()
        assert BudgetBook(path, "visits").account().live  # who asks without the key is not protected by it

    def test_an_older_copy_has_another_end(self, tmp_path):
        """Nothing refuses it: what the last line of show() is for."""
        path, copy = str(tmp_path / "b.db"), str(tmp_path / "old.db")
        book = granted(path)
        shutil.copy(path, copy)
        book.reserve(mechanism()).spend()
        end = book.show().splitlines()[-1]
        shutil.copy(copy, path)
        assert book.show().splitlines()[-1] != end

    def test_other_files_and_no_file(self, tmp_path):
        with pytest.raises(GuaranteeError, match="no budget book"):
            BudgetBook(tmp_path / "none.db", "visits").reserve(mechanism())
        assert not (tmp_path / "none.db").exists()
        (tmp_path / "text.db").write_text("not a database, but long enough to be read as one" * 40)
        with pytest.raises(CheckpointError):
            BudgetBook(tmp_path / "text.db", "visits").account()
        path = str(tmp_path / "b.db")
        granted(path)
        with sqlite3.connect(path) as connection:
            body = json.dumps({"kind": "gift", "data": "visits"})
            (link,) = connection.execute("SELECT link FROM budget").fetchone()
            rows = [(1, body, linked(link, body))]
            connection.executemany("INSERT INTO budget VALUES (?, ?, ?)", rows)
        connection.close()
        with pytest.raises(CheckpointError, match="no budget book of this version"):
            BudgetBook(path, "visits").account()

    @pytest.mark.parametrize(
        "options", [{"data": ""}, {"data": None}, {"key": b"short"}, {"key": "text" * 8}]
    )
    def test_what_is_no_book(self, tmp_path, options):
        with pytest.raises(ValueError):
            BudgetBook(tmp_path / "b.db", **{"data": "visits", **options})


class TestStreams:
    def stream(self, book, epsilon=1.0, **options):
        return streaming.Stream(
            streaming.Count(), epsilon=epsilon, delta=1e-6, horizon=8, unit="event", book=book, **options
        )

    def test_a_stream_is_charged_when_it_is_made_and_spends_at_its_first_release(self, place):
        book = granted(place, unit="event")
        first = self.stream(book)
        first.update(["ann"])
        assert [one.status for one in book.account().live] == ["reserved"]
        first.release()
        assert [one.status for one in book.account().live] == ["spent"]
        with pytest.raises(GuaranteeError, match="does not cover"):
            self.stream(book, 0.5)

    def test_a_stream_that_was_given_back_releases_nothing(self, place):
        book = granted(place, unit="event")
        late = self.stream(book)
        book.cancel(book.account().live[0].token)
        self.stream(book).release()
        for release in (late.release, lambda: late.steps([["ann"]])):
            with pytest.raises(GuaranteeError, match="cancelled"):
                release()
        assert late.step == 0


def test_the_command_line(capsys, tmp_path):
    path = str(tmp_path / "b.db")

    def run(*arguments):
        code = cli.main(["budget", *arguments])
        shown = capsys.readouterr()
        return code, shown.out, shown.err

    assert run("show", path)[0] == 2
    assert (
        run("grant", path, "visits", "--epsilon", "2", "--delta", "1e-6", "--amplified", ".5", "1e-7")[0] == 0
    )
    assert run("grant", path, "labs", "--epsilon", "1", "--delta", "1e-6", "--unit", "patient")[0] == 0
    token = BudgetBook(path, "visits", who="ann").reserve(mechanism(), run="r").token
    _, out, _ = run("show", path)
    assert "'visits'" in out and "'labs'" in out and "ann: mu" in out and token in out
    assert "'labs'" not in run("show", path, "visits")[1]
    code, _, err = run("grant", path, "labs", "--epsilon", ".5", "--delta", "1e-6", "--unit", "patient")
    assert code == 2 and "never shrink" in err
    assert run("cancel", path, "visits", token)[0] == 0
    assert run("cancel", path, "visits", token)[0] == 2
    assert not BudgetBook(path, "visits").account().live


def test_the_commands_of_the_page_are_read():
    page = (Path(__file__).resolve().parents[2] / "docs" / "budget.md").read_text("utf-8")
    commands = re.findall(r"^\$ anechoic (.*)$", page, flags=re.MULTILINE)
    assert len(commands) == 3
    for command in commands:
        assert parser_of_all().parse_args(shlex.split(command)).command == "budget"
