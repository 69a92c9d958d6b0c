"""Files as people have them: each is read as it was written, or refused with the option that reads it."""

import contextlib
import csv
import gzip
import io
import itertools
import json
import math
from datetime import UTC, datetime, timedelta

import pytest

from anechoic import cli
from tests.marks import slow

pl = pytest.importorskip("polars")

DAY = timedelta(days=1)
CITIES = ["Zürich", "Bern, Stadt", 'Bad "Ragaz"']
STEPS, EACH = 3, 24

#: Encodings, and what is said where UTF-8 is read.
ENCODINGS = {"utf-8": "", "utf-8-sig": "", "utf-16": "UTF-16"}
ENCODINGS |= dict.fromkeys(["latin-1", "cp1252", "gb18030", "cp437", "iso8859-15"], "--encoding")
QUOTING = {"minimal": csv.QUOTE_MINIMAL, "all": csv.QUOTE_ALL, "words": csv.QUOTE_NONNUMERIC}
#: Times: how they are written, by which steps, with which option, and what is said without.
TIMES = {
    "iso": ("%Y-%m-%dT%H:%M:%S", "day", None, ""),
    "space": ("%Y-%m-%d %H:%M", "day", None, ""),
    "offset": ("%Y-%m-%dT%H:%M:%S+00:00", "1d", None, ""),
    "zulu": ("%Y-%m-%dT%H:%M:%S.250Z", "24h", None, ""),
    "date": ("%Y-%m-%d", "day", None, ""),
    "yyyymmdd": ("%Y%m%d", "day", None, ""),
    "seconds": (1.0, "day", None, ""),
    "seconds as told": (1.0, "day", "s", ""),
    "milliseconds": (1e3, "day", "ms", "milliseconds since 1970: --time-format ms"),
    "microseconds": (1e6, "day", "us", "--time-format us"),
    "nanoseconds": (1e9, "day", "ns", "--time-format ns"),
    "excel": (None, "day", "excel", "days of Excel: --time-format excel"),
    "dots": ("%d.%m.%Y %H:%M", "day", "%d.%m.%Y %H:%M", "--time-format %d.%m.%Y"),
    "slashes": ("%m/%d/%Y %I:%M %p", "day", "%m/%d/%Y %I:%M %p", "%m/%d/%Y"),
    "year first": ("%Y/%m/%d", "day", "%Y/%m/%d", "%Y/%m/%d"),
    "words": ("%d %b %Y", "day", "%d %b %Y", "%b"),
    "zone": ("%Y-%m-%d %H:%M UTC", "day", "%Y-%m-%d %H:%M UTC", "letters for themselves"),
    "years": ("%Y", "year", "%Y", "years: --time-format %Y"),
    "months": ("%Y%m", "month", "%Y%m", "--time-format %Y%m, "),
    "months with a dash": ("%Y-%m", "month", "%Y-%m", "--time-format %Y-%m"),
    "short dates": ("%y%m%d", "day", "%y%m%d", "--time-format %Y%m, %y%m%d or"),
    "digits to the hour": ("%Y%m%d%H", "day", "%Y%m%d%H", "date and hour: --time-format %Y%m%d%H"),
    "digits to the minute": ("%Y%m%d%H%M", "day", "%Y%m%d%H%M", "--time-format %Y%m%d%H%M"),
    "digits": ("%Y%m%d%H%M%S", "day", "%Y%m%d%H%M%S", "--time-format %Y%m%d%H%M%S"),
    "date by the hour": ("%Y-%m-%d", "1h", "", "--every day"),
    "years by the day": ("%Y", "day", "", "--time-format %Y"),
}
#: Numbers: marks of thousands and of tenths.
NUMBERS = {"plain": ("", "."), "comma": ("", ","), "English": (",", "."), "German": (".", ",")}
NUMBERS |= {"Swiss": ("'", "."), "French": (" ", ",")}
MISSING = ["", "NA", "NaN", "null", "n/a", ".", "#N/A"]


def moment_of(step, k, every):
    """The k-th record of a step, late in the day for k > 0."""
    hour = timedelta(hours=23 * k / EACH)
    year = {"year": 2020 + step}.get(every, 2024)
    if every == "year":
        return datetime(year, 1, 1, tzinfo=UTC)
    if every == "month":
        return datetime(2024, 1 + step, 1, tzinfo=UTC)
    return datetime(2024, 1, 29, tzinfo=UTC) + step * DAY + hour


def time_text(moment, form):
    if isinstance(form, str):
        return moment.strftime(form)
    if form is None:
        return repr((moment - datetime(1899, 12, 30, tzinfo=UTC)) / DAY)
    return str(round(moment.timestamp() * form))


def number_text(value, thousands, point):
    return f"{value:,.2f}".translate({ord(","): thousands, ord("."): point})


def records(time, number="plain", missing=None):
    """(time, amount, city, note) as written, and per step the count, the mean and counts of two cities."""
    form, every = TIMES[time][:2]
    rows, truth = [], []
    for step in range(STEPS):
        amounts, cities = [], []
        for k in range(EACH):
            amount = 100.0 * step + 37.25 * k + (1000 if k % 4 == 0 else 0)
            there = missing is None or k % 5
            cities.append(CITIES[(k + step) % 3])
            amounts += [amount] * bool(there)
            written = number_text(amount, *NUMBERS[number]) if there else missing
            rows.append((time_text(moment_of(step, k, every), form), written, cities[-1], "Müller; é"))
        truth.append([EACH, sum(amounts) / len(amounts), *map(cities.count, CITIES[:2])])
    return rows, truth


def written(path, rows, encoding="utf-8", separator=",", quoting="minimal"):
    text = io.StringIO()
    writer = csv.writer(text, delimiter=separator, quoting=QUOTING[quoting], lineterminator="\r\n")
    writer.writerows([("when", "amount", "Stadt/city", "note"), *rows])
    path.write_bytes(text.getvalue().encode(encoding))


def run(path, *more):
    """(code, {statistic and entry: values by step} or None, what was said)."""
    out, said = path.with_suffix(".out.csv"), io.StringIO()
    out.unlink(missing_ok=True)
    given = ["stream", "--input", path, "--time", "when", "--count", "--mean", "amount:0:4000"]
    given += ["--histogram", 'Stadt/city:Zürich,"Bern, Stadt"', "--over", 1, "--horizon", 99, "--out", out]
    given += ["--epsilon", 1e7, *more]
    with contextlib.redirect_stdout(said), contextlib.redirect_stderr(said):
        try:
            code = cli.main([*map(str, given)])
        except SystemExit as refused:
            code = refused.code
    if not out.exists():
        return code, None, said.getvalue()
    found = {}
    with out.open(encoding="utf-8") as file:
        for row in csv.DictReader(file):
            found.setdefault(int(row["step"]), []).append(float(row["value"]))
    return code, [*found.values()], said.getvalue()


def close(found, truth):
    flat = zip(itertools.chain(*found), itertools.chain(*truth), strict=True)
    return all(math.isclose(a, b, abs_tol=0.4) for a, b in flat)


def steps_of(every):
    start, until = "2024-01-29", "2024-02-01"
    if every in ("year", "month"):
        start, until = ("2020-01-01", "2023-01-01") if every == "year" else ("2024-01-01", "2024-04-01")
    return ["--every", every, "--start", start, "--until", until]


CELLS = [
    *itertools.product(ENCODINGS, ",;\t|", QUOTING, ["iso"], ["plain"], [None]),
    *itertools.product(["utf-8", "latin-1"], ",;", ["minimal", "all"], TIMES, ["plain"], [None]),
    *itertools.product(["utf-8"], ",;\t|", QUOTING, ["dots"], NUMBERS, [None]),
    *itertools.product(["utf-8"], ",;", ["minimal"], ["iso"], NUMBERS, MISSING),
]


def check(path, encoding, separator, quoting, time, number, missing):
    """A cell without options, which is right or says which are needed; and with them, which is right."""
    rows, truth = records(time, number, missing)
    written(path, rows, encoding, separator, quoting)
    _, every, form, hint = TIMES[time]
    thousands, point = NUMBERS[number]
    options, words = [], [hint] * bool(hint)
    if ENCODINGS[encoding]:
        options, words = ["--encoding", encoding], [ENCODINGS[encoding], *words]
    options += ["--time-format", form] * bool(form)
    if number != "plain":
        options, words = [*options, "--decimal", point], [*words, "--decimal and --thousands"]
        options += [f"--thousands={thousands}"] * bool(thousands)
    code, found, said = run(path, *steps_of(every))
    if words:
        assert code in (2, 3) and found is None and any(word in said for word in words), said
    if encoding == "utf-16" or form == "":
        return
    if options or not words:
        code, found, said = run(path, *steps_of(every), *options)
        assert code == 0 and close(found, truth), (said, found, truth)


def tried(cells, tmp_path):
    failed = []
    for cell in cells:
        try:
            check(tmp_path / "a.csv", *cell)
        except AssertionError as error:
            failed.append((cell, str(error)[:300]))
    assert not failed, (len(failed), failed[:3])


def test_some_cells_are_right_or_refused_with_the_option(tmp_path):
    tried(CELLS[::21], tmp_path)


@pytest.mark.slow
def test_every_cell_is_right_or_refused_with_the_option(tmp_path):
    assert len(CELLS) >= 300
    tried(CELLS, tmp_path)


@pytest.mark.parametrize("every_nth", [3, *slow(1)])
def test_json_lines_and_parquet_have_the_same_cells(every_nth, tmp_path):
    """Times as numbers, texts and typed columns; amounts as numbers, with missing ones among them."""
    for name, (form, every, option, hint) in [*TIMES.items()][::every_nth]:
        rows, truth = records(name, missing="")
        times = [float(t) if form is None or isinstance(form, float) else t for t, *_ in rows]
        whole = [int(t) if isinstance(t, float) and t.is_integer() else t for t in times]
        amounts = [None if not amount else float(amount) for _, amount, *_ in rows]
        cities = [city for *_, city, _ in rows]
        for kind, some in (("jsonl", [times]), ("parquet", [whole])):
            for column in some:
                path, table = (
                    tmp_path / f"a.{kind}",
                    {"when": column, "amount": amounts, "Stadt/city": cities},
                )
                if kind == "parquet":
                    pl.DataFrame(table, strict=False).write_parquet(path)
                else:
                    lines = (dict(zip(table, row, strict=True)) for row in zip(*table.values(), strict=True))
                    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
                code, found, said = run(path, *steps_of(every))
                if hint:
                    assert code == 2 and found is None and hint in said, (name, kind, said)
                if option or not hint:
                    code, found, said = run(path, *steps_of(every), *["--time-format", option] * bool(option))
                    assert code == 0 and close(found, truth), (name, kind, said)
    rows, truth = records("iso")
    moments = [datetime.fromisoformat(time) for time, *_ in rows]
    table = {"amount": [float(row[1]) for row in rows], "Stadt/city": [row[2] for row in rows]}
    path = tmp_path / "a.parquet"
    for column in (moments, [moment.replace(tzinfo=UTC) for moment in moments], [m.date() for m in moments]):
        pl.DataFrame({"when": column, **table}).write_parquet(path)
        assert close(run(path, *steps_of("day"))[1], truth)
    dates = pl.Series([moment.date() for moment in moments])
    for column in (
        dates,
        dates.cast(pl.Datetime("ms")),
        dates.cast(pl.Datetime("us")).to_physical() // 10**6,
    ):
        pl.DataFrame({"when": column, **table}).write_parquet(path)
        code, found, said = run(path, *steps_of("15min"))
        assert code == 2 and found is None and "are dates, or coarser" in said


HEAD = "when,amount,Stadt/city,note\n"
GOOD = "2024-01-29T05:00,5,Zürich,x\n"
#: A record that is left out, or of which a number is, and the reason that is told.
LEFT_OUT = {
    "2024-01-29T05:00,5,Z\xfcrich,x\n": "that are no text in UTF-8",
    "2024-01-29T05:00,5,Zürich\n": "too few fields",
    '2024-01-29T05:00,5,"Zürich,x\n': "no CSV",
    "2024-01-29T05:00,a lot,Zürich,x\n": "with no number in amount",
    '2024-01-29T05:00,"1,234.50",Zürich,x\n': "with no number in amount",
    "2023-01-29T05:00,5,Zürich,x\n": "before the start",
    "2961-01-29T05:00,5,Zürich,x\n": "ahead of the clock",
    "soon,5,Zürich,x\n": "without a time that can be read",
    f"2024-01-29T05:00,5,Zürich,{'x' * 2**20}\n": "longer than a MiB",
}


def test_all_kinds_of_left_out_count_and_end_with_code_3(tmp_path):
    path, when = tmp_path / "a.csv", steps_of("day")
    for odd, reason in LEFT_OUT.items():
        raw = odd.encode("latin-1") if "UTF-8" in reason else odd.encode()
        for good, code, share in ((98, 3, "2.0 % of 100 records"), (199, 0, "1.0 % of 201 records")):
            path.write_bytes((HEAD + GOOD * good).encode() + raw * 2)
            found = run(path, *when)
            assert found[0] == code and share in found[2] and reason in found[2], (found, reason)
            assert ("nothing is released" in found[2] and found[1] is None) == bool(code)
        path.write_bytes(HEAD.encode() + raw * 2)
        assert run(path, *when)[0] == 3 and run(path, *when, "--bad-share", 1)[0] == 0
    without = "2024-01-29T05:00,5,,x\n"  # an id that is missing
    path.write_text(HEAD + GOOD + without)
    assert "1 without an id" in run(path, *when, "--unit", "Stadt/city")[2]


def test_bytes_in_a_column_that_is_not_read_drop_nothing(tmp_path):
    path, when = tmp_path / "a.csv", steps_of("day")
    odd = b"2024-01-29T05:00,5,Basel,M\xfcller \x80\xff\n"
    path.write_bytes((HEAD + GOOD * 500).encode() + odd * 4)
    code, found, said = run(path, *when)
    assert code == 0 and close(found[:1], [[504, 5, 500, 0]]) and "left out" not in said
    path.write_bytes((HEAD + GOOD * 300).encode() + odd * 4)
    code, found, said = run(path, *when)
    assert (
        code == 2
        and found is None
        and "4 of 304 lines" in said
        and "no text in UTF-8. Give --encoding" in said
    )


def test_a_typed_time_beyond_the_calendar_is_none(tmp_path):
    """One such record stopped a run: it has no date."""
    moments = pl.Series([datetime(2024, 1, 29, 5, tzinfo=UTC)] * 150).dt.epoch("ms").to_list()
    times = pl.Series([*moments, 2**52 - 2**52 % 900_000, -(2**60), None])
    table = {"when": times.cast(pl.Datetime("ms")), "amount": 5.0, "Stadt/city": "Zürich"}
    pl.DataFrame(table).write_parquet(tmp_path / "a.parquet")
    for every in ("1h", "day"):
        for first in ([], ["--start", "2024-01-29"]):
            more = [*first, "--until", "2024-01-30", "--bad-share", 0.02]
            code, found, said = run(tmp_path / "a.parquet", "--every", every, *more)
            assert code == 0 and "3 without a time that can be read" in said, said
            assert max(count for count, *_ in found) == pytest.approx(150, abs=0.1)
    days = pl.Series([19751] * 150 + [2**30, -(2**30), None], dtype=pl.Int32).cast(pl.Date)
    pl.DataFrame({**table, "when": days}).write_parquet(tmp_path / "a.parquet")
    code, found, said = run(tmp_path / "a.parquet", *steps_of("day"), "--bad-share", 0.02)
    assert code == 0 and "3 without a time that can be read" in said, said


@pytest.mark.parametrize(
    ("data", "more", "words"),
    [
        (b"", [], "is empty"),
        (HEAD.encode(), ["--every", "day"], "it has no record, and --start is not given"),
        (b"when,amount,Stadt/city,amount\n", [], "several columns 'amount'"),
        (HEAD.replace("\n", "\r").encode() + b"x\r", [], "carriage return alone"),
        (HEAD.encode(), ["--encoding", "utf-16"], "iconv -f UTF-16"),
        (HEAD.encode(), ["--encoding", "none-such"], "must be one in which ASCII is itself"),
        (HEAD.encode(), ["--separator", "::"], "must be one character, or tab"),
        (HEAD.encode(), ["--time-format", "hours"], "one of strptime with a year"),
        (HEAD.encode(), ["--time-format", "%Y"], "dates, or coarser"),
        (HEAD.encode(), ["--every", "month", "--start", "2024-01-02"], "not the 1st of a month"),
        (HEAD.encode(), ["--histogram", "note:a,,b"], "must have the form column:category"),
        (HEAD.encode(), ["--thousands", "."], "cannot be both"),
        (HEAD.encode(), ["--over", "0"], "must be at least 1"),
    ],
)
def test_what_cannot_be_right_is_refused_before_anything(tmp_path, data, more, words):
    (tmp_path / "a.csv").write_bytes(data)
    start = [] if "no record" in words else steps_of("day")
    code, found, said = run(tmp_path / "a.csv", *start, *more)
    assert code == 2 and found is None and words in said, said


def test_other_separators_and_gzip(tmp_path):
    rows, truth = records("iso")
    for mark in ";~\t^]\\ ":
        given = "tab" if mark == "\t" else mark
        written(tmp_path / "a.csv", rows, separator=mark, quoting="all")
        assert close(run(tmp_path / "a.csv", *steps_of("day"), "--separator", given)[1], truth), mark
    with gzip.open(tmp_path / "a.csv.gz", "wb") as file:
        file.write((tmp_path / "a.csv").read_bytes())
    assert close(run(tmp_path / "a.csv.gz", *steps_of("day"), "--separator", " ")[1], truth)


def test_local_days_go_on_over_the_change_of_the_clocks(tmp_path):
    """Half of the records of a day lie between 00:05 and 00:55: after 8 March they were of the day before."""
    path, state = tmp_path / "a.csv", tmp_path / "s.db"
    day = [f"00:{5 + k % 50:02}" if k % 2 else f"{k % 22 + 1:02}:30" for k in range(200)]
    zone = ["--timezone", "America/New_York", "--start", "2026-03-06", "--state", state, "--epsilon", 1e7]
    for every in ("day", "1d"):
        state.unlink(missing_ok=True)
        for last in (8, 10):  # the second run goes on with the first one's state
            days = [f"2026-03-{d:02}T{at}," for d in range(6, last) for at in day]
            path.write_text(HEAD + "".join(f"{time}5,x,y\n" for time in days))
            code, found, said = run(path, *zone, "--every", every, "--until", f"2026-03-{last:02}", "--force")
            assert code == 0 and close(found, [[200, 5, 0, 0]] * (last - 6)), said
    code, _, said = run(path, *zone, "--every", "week", "--until", "2026-03-12", "--force")
    assert code == 2 and "belongs to another stream" in said and "every" in said


def test_groups_and_windows_are_printed_a_line_each(tmp_path):
    path = tmp_path / "a.csv"
    path.write_text(HEAD + GOOD * 30 + GOOD.replace("Zürich", '"Bern, Stadt"') * 20)
    code, _, said = run(path, *steps_of("day"), "--by", 'Stadt/city:"Bern, Stadt",Zürich')
    assert code == 0 and "of each step alone; epsilon 10000000 at delta 1e-06 for all of it together" in said
    assert (
        "  count, Bern, Stadt: " in said and "  count, Zürich: " in said and "Zürich: Bern, Stadt: " in said
    )
    with (tmp_path / "a.out.csv").open(encoding="utf-8") as file:
        assert {row["epsilon"] for row in csv.DictReader(file)} == {"10000000.0"}
