"""A state file belongs to a clock and columns: a record is in one step, whatever a later run is told."""

import re

import pytest

pytest.importorskip("polars")

from anechoic import cli, streaming
from anechoic.errors import MismatchError

RECORDS = "when,who,x\n" + "".join(f"2024-01-01T{h:02}:30,p{h},1\n" for h in range(6))
COMMAND = {
    "--time": "when",
    "--every": "1h",
    "--start": "2024-01-01",
    "--until": "2024-01-01T06:00",
    "--mean": "x:0:1",
    "--epsilon": "1",
}


def run(tmp_path, capsys, *flags, **changed):
    (tmp_path / "in.csv").write_text(RECORDS)
    options = {**COMMAND, "--input": tmp_path / "in.csv", "--state": tmp_path / "s.db"}
    options |= {f"--{name.replace('_', '-')}": value for name, value in changed.items()}
    words = [str(word) for pair in options.items() if pair[1] is not None for word in pair]
    code = cli.main(["stream", *words, *flags])
    return code, capsys.readouterr().err


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({"timezone": "America/New_York"}, "setting.start .*, setting.timezone differ"),
        ({"start": "2023-12-31T23:00"}, "setting.start .* differs"),
        ({"every": "2h"}, "setting.every .*was 3600.* differs"),
        ({"time": "x"}, "setting.time differs"),
        ({"mean": "who:0:1"}, "order, statistics"),
        ({"unit": "who"}, "setting.unit"),
    ],
)
@pytest.mark.few(1)
def test_a_later_run_with_another_clock_or_column_is_refused_by_name(tmp_path, capsys, changed, words):
    assert run(tmp_path, capsys, until="2024-01-01T03:00")[0] == 0
    code, error = run(tmp_path, capsys, **changed)
    assert code == 2
    assert re.search(words, error), error
    assert len(streaming.read_releases(tmp_path / "s.db")) == 3
    assert run(tmp_path, capsys)[0] == 0 and len(streaming.read_releases(tmp_path / "s.db")) == 6


def test_where_it_writes_is_tried_before_anything_is_released(tmp_path, capsys):
    for bad in (tmp_path / "missing" / "x.csv", tmp_path / "folder.csv"):
        (tmp_path / "folder.csv").mkdir(exist_ok=True)
        code, error = run(tmp_path, capsys, out=bad)
        assert code == 2 and "cannot be written" in error and not (tmp_path / "s.db").exists()


@pytest.mark.slow
def test_a_table_is_there_as_a_whole_or_as_it_was(tmp_path, capsys, monkeypatch):
    out = tmp_path / "o.csv"
    assert run(tmp_path, capsys, out=out, until="2024-01-01T03:00")[0] == 0
    before, mode = out.read_text(), out.stat().st_mode

    def interrupted(path, releases):
        path.write_text("half of i")
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr("anechoic.streaming.command.write_releases", interrupted)
        run(tmp_path, capsys, out=out)
    assert out.read_text() == before
    assert run(tmp_path, capsys, out=out)[0] == 0
    assert out.read_text().startswith(before) and out.stat().st_mode == mode
    # the lock stays, empty: to remove it would let two processes each lock a file of that name
    assert {path.name for path in tmp_path.iterdir()} - {"s.db.lock"} == {"in.csv", "o.csv", "s.db"}


@pytest.mark.slow
def test_what_the_caller_says_belongs_to_a_state_too(tmp_path):
    options = {"epsilon": 1.0, "horizon": 4, "state": tmp_path / "s"}
    streaming.Stream(streaming.Count(), **options, setting={"source": "visits", "day starts": 4}).close()
    with pytest.raises(MismatchError, match=r"setting.day starts \(was 4, is 5\) differs"):
        streaming.Stream(streaming.Count(), **options, setting={"source": "visits", "day starts": 5})
    with pytest.raises(MismatchError, match="setting"):
        streaming.Stream(streaming.Count(), **options)
    with pytest.raises(ValueError, match="must be plain data"):
        streaming.Stream(streaming.Count(), **options, setting={"zone": object()})
    streaming.Stream(streaming.Count(), **options, setting={"source": "visits", "day starts": 4}).close()


def test_the_order_of_statistics_belongs_to_it(tmp_path):
    """Sums of the open step lie side by side: in another order they would be taken for each other."""
    a, b = streaming.Count("x"), streaming.Count("x")
    streaming.Stream({"a": a, "b": b}, epsilon=1.0, horizon=4, state=tmp_path / "s").close()
    with pytest.raises(MismatchError, match="order differs"):
        streaming.Stream({"b": b, "a": a}, epsilon=1.0, horizon=4, state=tmp_path / "s")


def test_another_mechanism_is_named_by_its_figures(tmp_path):
    given = {"horizon": 4, "state": tmp_path / "s.db"}
    streaming.Stream(streaming.Count(), epsilon=1.0, **given).close()
    figures = r"mechanism differs .*epsilon \(was 1, is 2\), .*noise_multiplier \(was [\d.]+, is [\d.]+\)"
    with pytest.raises(MismatchError, match=figures):
        streaming.Stream(streaming.Count(), epsilon=2.0, **given)
    with pytest.raises(MismatchError, match=r"mechanism differs .*delta \(was 1e-06, is 1e-07\)"):
        streaming.Stream(streaming.Count(), epsilon=1.0, delta=1e-7, **given)
    with pytest.raises(MismatchError, match=r"mechanism differs .*steps \(was 4, is 8\)"):
        streaming.Stream(streaming.Count(), epsilon=1.0, **given | {"horizon": 8})
