"""Steps of the calendar in local time, and times as files write them: each is read by itself, or is none."""

import math
from datetime import UTC, date, datetime, timedelta
from zoneinfo import ZoneInfo

import numpy as np
import pytest

from anechoic.streaming.clock import Clock, iso, seconds_of, time_reader, zone_of

ZONES = ["UTC", "Europe/Zurich", "America/New_York", "America/St_Johns", "Asia/Kolkata", "America/Havana"]
ZONES += ["Pacific/Apia", "Asia/Beirut", "America/Sao_Paulo", "Africa/Cairo", "Australia/Lord_Howe"]
FIRST = {"day": "2007-03-03", "week": "2007-03-05", "month": "2007-03-01", "quarter": "2007-01-01"}
FIRST |= {"year": "2007-01-01", "1d": "2007-03-03", "3d": "2007-03-03", "2w": "2007-03-05"}


def begins(every, zone, steps):
    """The local midnights at which steps begin, one after another, in another way than the clock's."""
    day = date.fromisoformat(FIRST[every])
    months = {"month": 1, "quarter": 3, "year": 12}.get(every)
    days = {"day": 1, "1d": 1, "3d": 3, "week": 7, "2w": 14}.get(every)
    for _ in range(steps):
        yield datetime(day.year, day.month, day.day, tzinfo=ZoneInfo(zone)).timestamp()
        if months is None:
            day += timedelta(days=days)
        else:
            count = day.year * 12 + day.month - 1 + months
            day = date(count // 12, count % 12 + 1, 1)


@pytest.mark.parametrize("every", FIRST)
def test_steps_of_the_calendar_begin_at_local_midnights(every):
    rng = np.random.default_rng(len(every))
    for zone in ZONES:
        clock = Clock.of(FIRST[every], every, zone)
        edges = np.array([*begins(every, zone, 2500 if "d" in every else 60)])
        assert [clock.begin_of(step) for step in range(len(edges))] == edges.tolist()
        assert [clock.end_of(step) for step in (0, 7)] == [iso(edges[1]), iso(edges[8])]
        times = np.concatenate([edges, edges - 1, edges + 1, rng.uniform(edges[0], edges[-1], 3000)])
        times = times[(times >= edges[0]) & (times < edges[-1])]
        assert np.array_equal(clock.step_of(times), np.searchsorted(edges, times, side="right") - 1), zone
        before = clock.step_of(np.array([edges[0] - 1, -62e9, math.nan, 253e9]))
        assert before[0] == -1 and before[1] < -1000 and before[2] == -(2**62) and before[3] > 500


def test_a_day_of_a_zone_has_23_or_25_hours():
    """Steps of 86,400 s from a midnight on began at 01:00 after the change of the clocks."""
    for every in ("day", "1d"):
        clock = Clock.of("2026-03-01", every, "America/New_York")
        lengths = np.diff([clock.begin_of(step) for step in range(300)]) / 3600
        assert {int(step): float(lengths[step]) for step in np.flatnonzero(lengths != 24)} == {7: 23, 245: 25}
        local = [f"2026-03-{day:02}T00:30" for day in range(1, 29)]
        assert clock.step_of(seconds_of(local, clock.zone)).tolist() == [*range(28)]


def test_steps_may_begin_on_other_days_and_at_other_hours():
    fiscal = Clock.of("2024-04-01", "year", "Europe/London")
    texts = ["2025-03-31T23:59", "2025-04-01T00:00", "2024-03-31T23:59"]
    assert fiscal.step_of(seconds_of(texts, fiscal.zone)).tolist() == [0, 1, -1]
    sundays = Clock.of("2024-01-07T06:00", "week", "America/New_York")
    texts = ["2024-01-14T05:59", "2024-01-14T06:00", "2024-03-17T05:59"]
    assert sundays.step_of(seconds_of(texts, sundays.zone)).tolist() == [0, 1, 9]


@pytest.mark.parametrize(
    ("every", "begin"),
    [
        ("week", "2024-05-12T22:00:00"),
        ("month", "2024-04-30T22:00:00"),
        ("quarter", "2024-03-31T22:00:00"),
        ("year", "2023-12-31T23:00:00"),
        ("day", "2024-05-14T22:00:00"),
        ("1h", "2024-05-15T10:00:00"),
    ],
)
def test_without_a_start_steps_are_those_of_the_calendar(every, begin):
    at = datetime(2024, 5, 15, 10, 20, tzinfo=UTC).timestamp()
    clock = Clock.of(at, every, "Europe/Zurich")
    assert iso(clock.start) == f"{begin}+00:00" and clock.step_of(np.array([at])).tolist() == [0]


@pytest.mark.parametrize(
    ("given", "words"),
    [
        (("2024-01-15", "month"), "not the 1st of a month"),
        (("2024-01-31T23:00+00:00", "month", "UTC"), "not the 1st"),
        (("soon", "day"), "'soon' is no time"),
        (("01.03.2026 10:00", "day"), "is no time in ISO 8601, .*: start and until are"),
        (("2024-01-01", "fortnight"), "or day, week, month, quarter or year"),
        (("2024-01-01", "day", "Mars/Olympus"), "unknown"),
    ],
)
def test_other_clocks_are_refused(given, words):
    with pytest.raises(ValueError, match=words):
        Clock.of(*given)


MOMENT = datetime(2024, 2, 29, 13, 5, tzinfo=UTC).timestamp()  # as each of these is read, but for the zone
FORMS = [
    (None, "2024-02-29T13:05"),
    (None, "2024-02-29 13:05:00.000"),
    (None, "20240229T130500Z"),
    (None, "2024-02-29T14:05+01:00"),
    (None, " 1709211900"),
    (None, "1709211900.0"),
    ("s", "1.7092119e9"),
    ("s", "1709211900"),
    ("ms", "1709211900000"),
    ("us", "1709211900000000"),
    ("ns", "1709211900000000000"),
    ("excel", "45351.5451388889"),
    ("%d.%m.%Y %H:%M", "29.02.2024 13:05"),
    ("%m/%d/%Y %I:%M %p", "02/29/2024 01:05 PM"),
    ("%Y-%m-%d %H:%M UTC", "2024-02-29 13:05 UTC"),
    ("%d %B %Y, %H:%M%z", "29 February 2024, 14:05+0100"),
    ("%Y%m%d%H%M%S", "20240229130500"),
    ("%G-W%V-%u %H:%M", "2024-W09-4 13:05"),
]


def test_every_form_is_read_as_it_says():
    for form, text in FORMS:
        assert seconds_of([text], form=form).tolist() == [MOMENT], text
    local = seconds_of(["45351.5451388889", "45351.5"], zone_of("Europe/Zurich"), "excel")
    assert local.tolist() == [MOMENT - 3600, MOMENT - 3600 - 65 * 60]
    for form, text in (("%Y", "2024"), ("%Y%m", "202401"), (None, "20240101"), ("%Y%m%d", "20240101")):
        assert seconds_of([text], form=form) == datetime(2024, 1, 1, tzinfo=UTC).timestamp()


def test_digits_alone_are_seconds_only_where_that_is_plausible():
    """Each by itself: neither years, milliseconds nor what is beyond the calendar."""
    none = ["1900", "2024", "202401", "45351", "45351.5", "1709211900000", "1704121511200", "99999999", "-5"]
    none += [
        "0",
        "1e8_",
        "99999999999",
        "1e10",
        "20241301",
        "nan",
        "inf",
        "1e400",
        "",
        "9999-12-31",
        "0001-01-01",
    ]
    none += ["2024-01-02+05:30", "2024-01-02 10.30", "2024-01-02/2024", "2024-01-02:15:30", "2024010224"]
    none += ["1.7092119e9", "2024022913", "1999123123", "24:00", "2024-02-30", "Ⅳ", "2024-01", "NaT"]
    assert np.isnan(seconds_of(none)).all()
    rng = np.random.default_rng(3)
    millis = rng.integers(10**11, 10**13, 20_000).astype(str).tolist()
    assert np.isnan(seconds_of(millis)).all()


@pytest.mark.parametrize(
    "form", ["", "iso", "%d.%m", "%H:%M", "%Y-%m-%d %I:%M", "%Y %Z", "%Y %Q", "%s", "%%Y"]
)
def test_forms_that_cannot_be_right_are_refused(form):
    with pytest.raises(ValueError, match="must be s, ms, us, ns, excel, or one of strptime with a year"):
        time_reader(form)
