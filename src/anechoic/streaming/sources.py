"""Files of records, some of them at a time: CSV and JSON lines, of which each line is a record, and Parquet.

A file is the sum of its lines: nothing that stands before or after a line decides how it is read, nor where
what is read at once begins. So a field in quotes holds no end of a line; a quote that is never closed would
else take the records of others for its own. What cannot be read is left out and counted. Records are private:
no message shows any part of one.
"""

from __future__ import annotations

import codecs
import csv
import gzip
import json
import math
import re
import sys
import zlib
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import nullcontext
from datetime import tzinfo
from functools import partial
from typing import Any

import numpy as np
import polars as pl
from numpy.typing import NDArray

from anechoic._validate import Array
from anechoic.streaming.clock import YEARS, seconds_of

#: Bytes that are read at once, and that a line may have; rows of Parquet that are read at once.
BLOCK, LONGEST, ROWS = 2**23, 2**20, 2**18
#: What stands between fields: the first with which the head has all columns that are read.
_SEPARATORS = ",;\t|"
#: Texts that stand for a missing number, in small letters.
_MISSING = ("", "nan", "na", "n/a", "<na>", "#n/a", "null", "none", ".")
#: What times that are no ISO 8601 look like, and what reads them.
TIME_FORMS = {
    r"^\d{4}$": "years: --time-format %Y",
    r"^\d{4}-\d\d$": "years and months: --time-format %Y-%m",
    r"^\d{6}$": "digits of a date: --time-format %Y%m, %y%m%d or %d%m%y",
    r"^\d{5}(\.\d+)?$": "days of Excel: --time-format excel",
    r"^\d{10}$": "digits of date and hour: --time-format %Y%m%d%H, or s for seconds since 1970",
    r"^(19|20)\d\d(0[1-9]|1[0-2])([0-2]\d|3[01])\d{4}$": "digits of date and time: --time-format %Y%m%d%H%M",
    r"^\d{12,13}(\.\d+)?$": "milliseconds since 1970: --time-format ms",
    r"^\d{14}$": "digits of date and time: --time-format %Y%m%d%H%M%S",
    r"^\d{15,16}$": "microseconds since 1970: --time-format us",
    r"^\d{18,19}$": "nanoseconds since 1970: --time-format ns",
    r"^[-.\d]+e[+-]?\d+$": "numbers with an exponent, whose last digits are lost: write them out",
    r"^-?\d*\.?\d*$": "numbers: --time-format s for seconds since 1970, or another one",
    r"^\d{4}-\d\d-\d\d ?([+-]\d|z$)": "dates with an offset: leave it out, or write the time of day too",
    r"^\d{4}-\d\d-\d\d.\d+\.\d": "times with dots: --time-format %Y-%m-%d %H.%M",
    r"^\d+/\d+/\d": "dates with slashes: --time-format %d/%m/%Y, %m/%d/%Y or %Y/%m/%d, with %H:%M for hours",
    r"^\d+\.\d+\.\d": "dates with dots: --time-format %d.%m.%Y, with %H:%M for hours",
    r"\d.*\p{L}{3}|\p{L}{3}.*\d": "words: --time-format with %b or %B for months, and letters for themselves",
}
#: How many numbers of a typed column are a second.
_TICKS = {"day": 1 / 86400, "ms": 1e3, "us": 1e6, "ns": 1e9}
#: What stands for a character that cannot be decoded.
_NO_CHARACTER = "\ufffd"
_BYTE_ORDER_MARK = "\ufeff"
#: How files begin that are no text in UTF-8: UTF-16, archives, Parquet.
_NO_TEXT = (b"\xff\xfe", b"\xfe\xff", b"PK\3\4", b"\x1f\x8b", b"PAR1")


def source_of(path: str, names: Sequence[str], **how: Any) -> Source:
    """Return the source for a file by its name; "-" is standard input.

    Args:
        path: .csv, .jsonl, .ndjson or .parquet; the first three also with .gz. Text of another name is JSON
            lines where its first letter is "{".
        names: of the columns that are read.
        how: encoding and separator of text: see `TextSource`.
    """
    return ParquetSource(path, names) if path.endswith(".parquet") else TextSource(path, names, **how)


class Source(ABC):
    """Records of a file.

    Attributes:
        read: records so far, those that cannot be read among them.
        faults: how many of them cannot be read, by reason; private.
        garbled: how many lines have a character that cannot be decoded, in whatever column; private.
    """

    def __init__(self, path: str, names: Sequence[str]) -> None:
        self.path, self.names = path, list(names)
        self.read = self.garbled = 0
        self.faults: Counter[str] = Counter()

    @abstractmethod
    def batches(self) -> Iterator[pl.DataFrame]:
        """Yield the named columns of some records after others.

        Raises:
            ValueError: for a column that is missing, or what is no text.
        """

    def _check_columns(self, head: Sequence[str]) -> None:
        for name in self.names:
            if name not in head:
                encoding = " Give --encoding: its names are no UTF-8." if "\ufffd" in "".join(head) else ""
                columns = ", ".join(map(repr, head)) or "none"
                raise ValueError(f"{self.path} has no column {name!r}; it has {columns}.{encoding}")


class ParquetSource(Source):
    """A Parquet file."""

    def batches(self) -> Iterator[pl.DataFrame]:
        frame = pl.scan_parquet(self.path)
        self._check_columns(frame.collect_schema().names())
        height = frame.select(pl.len()).collect().item()
        while self.read < height:
            some = frame.select(self.names).slice(self.read, ROWS).collect()
            for name, kind in some.schema.items():  # a time beyond the calendar is none: Polars ends with it
                if isinstance(kind, pl.Date | pl.Datetime):
                    ticks = _TICKS["day" if isinstance(kind, pl.Date) else kind.time_unit]
                    known = pl.col(name).to_physical().is_between(YEARS[0] * ticks, YEARS[1] * ticks)
                    some = some.with_columns(pl.when(known).then(pl.col(name)))
            self.read += some.height
            yield some


class TextSource(Source):
    """CSV with a head, or JSON lines; all columns are read as text.

    Args:
        path, names: of the file, and of the columns that are read.
        encoding: in which letters, digits and ends of lines are those of ASCII.
        separator: a character between fields; None for the first of comma, semicolon, tab and bar with which
            the head has all columns that are read.

    Raises:
        ValueError: for an encoding or a separator that is none.
    """

    def __init__(
        self, path: str, names: Sequence[str], *, encoding: str = "utf-8", separator: str | None = None
    ) -> None:
        super().__init__(path, names)
        self._pattern = ""  # of a record of CSV, once the head is read
        self._is_json = path.removesuffix(".gz").endswith((".jsonl", ".ndjson"))
        self._marks = _SEPARATORS if separator is None else {"tab": "\t"}.get(separator, separator)
        if separator is not None and (len(self._marks) != 1 or self._marks in '"\r\n'):
            raise ValueError(f"separator {separator!r} must be one character, or tab.")
        ascii = bytes(range(128))
        try:
            self._encoding = codecs.lookup(encoding).name
            if ascii.decode(self._encoding) != ascii.decode("ascii"):
                raise LookupError
        except (LookupError, UnicodeError):
            raise ValueError(
                f"encoding {encoding!r} must be one in which ASCII is itself, such as utf-8, latin-1 or"
                " cp1252: convert others, as by iconv -f UTF-16 -t UTF-8."
            ) from None

    def batches(self) -> Iterator[pl.DataFrame]:
        rest = b""  # the begin of a line whose end was not read yet
        for block in self._blocks():
            data = rest + block
            end = data.rfind(b"\n") + 1
            rest = data[end:][: LONGEST + 1]
            yield from self._frames(data[:end])
        yield from self._frames(rest)
        if not (self._is_json or self._pattern):
            raise ValueError(f"{self.path} is empty: it has no line, not even a head.")

    def _blocks(self) -> Iterator[bytes]:
        open_as: Any = gzip.open if self.path.endswith(".gz") else open
        with nullcontext(sys.stdin.buffer) if self.path == "-" else open_as(self.path, "rb") as file:
            try:
                yield from iter(partial(file.read, BLOCK), b"")
            except (EOFError, gzip.BadGzipFile, zlib.error) as error:
                raise ValueError(f"{self.path} is cut short or damaged: {error}.") from None

    def _frames(self, data: bytes) -> Iterator[pl.DataFrame]:
        """Yield the records of some whole lines."""
        if not data:
            return
        if self._encoding == "utf-8":  # in which no byte of another character is that of a line's end
            texts = data.decode("utf-8", "replace").split("\n")
        else:
            texts = [line.decode(self._encoding, "replace") for line in data.split(b"\n")]
        lines = pl.Series("line", texts, dtype=pl.String)
        lines = lines.str.strip_prefix(_BYTE_ORDER_MARK).str.strip_suffix("\r")
        if not (self._is_json or self._pattern):
            if data.startswith(_NO_TEXT):
                raise ValueError(
                    f"{self.path} is no text in UTF-8: it begins like UTF-16, Parquet or a compressed file."
                    " Convert it, or give it its proper ending (.gz, .parquet)."
                )
            self._is_json = lines[0].startswith("{")
            if not self._is_json:
                self._read_head(lines[0])
                lines = lines.slice(1)
        lines = lines.filter(lines.str.strip_chars() != "")
        if not len(lines):
            return
        self.read += len(lines)
        self.garbled += int(lines.str.contains(_NO_CHARACTER, literal=True).sum())
        whole = lines.filter(lines.str.len_bytes() <= LONGEST)
        found = (self._from_json(whole) if self._is_json else self._from_csv(whole)).drop_nulls()
        clear = found.filter(~pl.any_horizontal(pl.all().str.contains(_NO_CHARACTER, literal=True)))
        kind = "no JSON objects" if self._is_json else "no CSV, or have too many or too few fields"
        faults = {"longer than a MiB": len(lines) - len(whole), f"that are {kind}": len(whole) - found.height}
        faults[f"that are no text in {self._encoding.upper()}"] = found.height - clear.height
        self.faults += Counter(faults)
        yield clear

    def _from_json(self, lines: pl.Series) -> pl.DataFrame:
        """Read lines of JSON: null in all columns for what is none."""
        rows: list[list[str | None]] = []
        for line in lines:
            try:
                record = json.loads(line)
                row = [text_of(record.get(name)) for name in self.names]
                "".join(row).encode()  # half a character, "\ud800", is no text
                rows.append([*row])
            except (ValueError, AttributeError, RecursionError):
                rows.append([None] * len(self.names))
        return pl.DataFrame(rows, dict.fromkeys(self.names, pl.String), orient="row")

    def _read_head(self, line: str) -> None:
        """Find out what stands between fields, and which of them are read.

        Raises:
            ValueError: for a column that is missing, or what is no head.
        """
        if "\r" in line:
            raise ValueError(
                f"the lines of {self.path} end in a carriage return alone, as on old Macs: write line feeds,"
                " as by tr '\\r' '\\n'."
            )
        try:
            heads = {mark: next(csv.reader([line], delimiter=mark), []) for mark in self._marks}
        except csv.Error as error:
            raise ValueError(f"the first line of {self.path} is no head of CSV: {error}.") from None
        fits = [mark for mark, head in heads.items() if set(self.names) <= set(head)]
        mark = fits[0] if fits else max(self._marks, key=lambda one: len(heads[one]))
        self._check_columns(heads[mark])
        for name in self.names:
            if heads[mark].count(name) > 1:
                raise ValueError(f"{self.path} has several columns {name!r}: give each a name of its own.")
        places = {heads[mark].index(name): name for name in self.names}
        self._fields = [places[place] for place in sorted(places)]
        other = f"^{re.escape(mark)}"
        field = rf'"(?:[^"]|"")*"|(?:[{other}"][{other}]*)?'
        groups = [f"({field})" if place in places else f"(?:{field})" for place in range(len(heads[mark]))]
        self._pattern = f"^{re.escape(mark).join(groups)}$"

    def _from_csv(self, lines: pl.Series) -> pl.DataFrame:
        """Read lines of CSV: null in all columns for what is no record."""
        records = lines.to_frame().select(pl.col("line").str.extract_groups(self._pattern)).unnest("line")
        records.columns = self._fields
        field = pl.all()
        inner = field.str.slice(1, field.str.len_chars() - 2).str.replace_all('""', '"', literal=True)
        return records.select(pl.when(field.str.starts_with('"')).then(inner).otherwise(field).name.keep())


def texts_of(column: pl.Series) -> pl.Series:
    """Return a column as text; empty for what is missing."""
    if column.dtype == pl.String:
        return column.fill_null("")
    return pl.Series(column.name, map(text_of, column.to_list()), dtype=pl.String)


def numbers_of(column: pl.Series, decimal: str = ".", thousands: str = "") -> tuple[Array, NDArray[np.bool_]]:
    """Return a column as numbers, NaN for what is none; and where a text stands that is none.

    Args:
        column: of numbers, or of text.
        decimal: the mark before tenths in a text.
        thousands: the mark between groups of three digits; empty where none is read.
    """
    if column.dtype != pl.String:
        return column.cast(pl.Float64, strict=False).to_numpy(), np.zeros(len(column), bool)
    text = pl.col(column.name).str.strip_chars()
    missing = text.str.to_lowercase().is_in(_MISSING)
    if thousands:
        groups = rf"[1-9]\d{{0,2}}({re.escape(thousands)}\d{{3}})+({re.escape(decimal)}\d*)?"
        grouped = text.str.contains(f"^[+-]?{groups}$")
        text = pl.when(grouped).then(text.str.replace_all(thousands, "", literal=True)).otherwise(text)
    if decimal != ".":
        plain = ~text.str.contains(".", literal=True)
        text = pl.when(plain).then(text.str.replace(decimal, ".", literal=True))
    number = text.cast(pl.Float64, strict=False)
    found = column.to_frame().select(number=number, odd=number.is_null() & ~missing)
    return found["number"].to_numpy(), found["odd"].to_numpy()


def times_of(column: pl.Series, zone: tzinfo, form: str | None = None) -> Array:
    """Return a column as seconds since 1970, as `seconds_of` reads texts; NaN for what is no time."""
    if isinstance(column.dtype, pl.Datetime):
        if column.dtype.time_zone is None:
            column = column.dt.replace_time_zone(str(zone), ambiguous="earliest", non_existent="null")
        return column.dt.cast_time_unit("us").to_physical().to_numpy() / 1e6
    return seconds_of(texts_of(column).to_list(), zone, None if column.dtype == pl.Date else form)


def looks_of(texts: pl.Series) -> Counter[str]:
    """Count what times look like that are no ISO 8601: each by the first form that it has."""
    found: Counter[str] = Counter()
    texts = texts_of(texts).str.strip_chars().str.to_lowercase()
    texts = texts.filter(~texts.is_in(_MISSING))
    for form, words in TIME_FORMS.items():
        like = texts.str.contains(form)
        found[words] += int(like.sum())
        texts = texts.filter(~like)
    return +found


def text_of(value: Any) -> str:
    """Return a value of JSON or Parquet as text; equal numbers have one, so 7, 7.0 and "7" are the same.

    What is missing (None, NaN) is empty.
    """
    if isinstance(value, float):
        if math.isnan(value):
            return ""
        return str(int(value)) if value.is_integer() else repr(value)
    return "" if value is None else str(value)
