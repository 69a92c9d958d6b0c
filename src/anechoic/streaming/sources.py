"""Files of records, read some at a time with Polars: CSV, JSON lines, and Parquet.

Each record is read by itself. One that cannot be read is left out and counted, and takes no other with it.
Records are private: no message shows any part of one.
"""

from __future__ import annotations

import csv
import gzip
import json
import os
import sys
import zlib
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import IO

import numpy as np
import polars as pl

from anechoic.streaming.columns import column_of, text_of

#: Bytes that are read at once, and more than any line may have; rows of Parquet that are read at once.
BLOCK, ROWS = 2**23, 2**18
#: Lines of one record at most, and their bytes: a quote that is never closed takes no more for its own.
_LINES, _LETTERS = 64, 2**17


def source_of(path: str, names: Sequence[str], *, growing: bool = False) -> Source:
    """A file by its name; "-" is standard input.

    Args:
        path: .csv, .jsonl, .ndjson or .parquet; the first three also with .gz. Text whose first letter is "{"
            is JSON lines, too.
        names: of the columns that are read.
        growing: whether somebody still writes the file.

    Raises:
        ValueError: for a growing file of a kind that does not grow.
    """
    kind = ParquetSource if path.endswith(".parquet") else TextSource
    if growing and (kind is ParquetSource or path.endswith(".gz") or path == "-"):
        raise ValueError(f"--follow needs a file of text that grows, not {path}.")
    return kind(path, names, growing=growing)


class Source(ABC):
    """Records of a file.

    Attributes:
        read: records so far, those that cannot be read among them.
        faults: how many of them cannot be read, by reason; private.
    """

    def __init__(self, path: str, names: Sequence[str], *, growing: bool = False) -> None:
        self.path, self.names = path, list(names)
        self._growing = growing
        self.read = 0
        self.faults: Counter[str] = Counter()

    @abstractmethod
    def batches(self) -> Iterator[dict[str, pl.Series]]:
        """The named columns of some records after others, to the end of what is there now.

        Raises:
            ValueError: for a column that is missing, or what is no text.
        """

    def close(self) -> None:  # noqa: B027 - some hold none
        """Give the file back."""

    def _fault(self, reason: str, count: int = 1) -> None:
        if count:
            self.read += count
            self.faults[reason] += count

    def _place(self, name: str, head: Sequence[str]) -> int:
        if name not in head:
            raise ValueError(f"{self.path} has no column {name!r}; it has {', '.join(head) or 'none'}.")
        return list(head).index(name)


class ParquetSource(Source):
    """A Parquet file."""

    def batches(self) -> Iterator[dict[str, pl.Series]]:
        frame = pl.scan_parquet(self.path)
        head = frame.collect_schema().names()
        for name in self.names:
            self._place(name, head)
        wanted = frame.select(self.names)
        while True:
            some = wanted.slice(self.read, ROWS).collect()
            self.read += some.height
            if some.height:
                yield {name: some[name] for name in self.names}
            if some.height < ROWS:
                return


class TextSource(Source):
    """CSV with a head, or JSON lines.

    CSV is that of RFC 4180 (a field in quotes may have several lines), with a comma, or with a semicolon or
    tab where the head has these.
    """

    def __init__(self, path: str, names: Sequence[str], *, growing: bool = False) -> None:
        super().__init__(path, names, growing=growing)
        self._open()

    def _open(self) -> None:
        self._file: IO[bytes] | None = None
        self._rest = b""  # read, and not yet used
        self._skipping = False  # to the end of a line that is too long
        self._ended = False
        self._head: list[str] = []
        self._is_json: bool | None = None

    def batches(self) -> Iterator[dict[str, pl.Series]]:
        if not self._growing:
            with _bytes_of(self.path) as file:
                while block := self._next_block(file):
                    yield from self._columns(self._lines(block))
                yield from self._columns(self._rest_of_file())
            return
        if self._file is None:
            self._file = _bytes_of(self.path)
        while block := self._next_block(self._file):
            yield from self._columns(self._lines(block))
        if self._replaced(self._file):
            yield from self._columns(self._rest_of_file())
            self.close()
            self._open()
            yield from self.batches()

    def close(self) -> None:
        if self._file is not None:
            self._file.close()

    def _next_block(self, file: IO[bytes]) -> bytes:
        try:
            return file.read(BLOCK)
        except (EOFError, gzip.BadGzipFile, zlib.error) as error:
            raise ValueError(f"{self.path} is cut short or damaged: {error}.") from None

    def _replaced(self, file: IO[bytes]) -> bool:
        """Whether the file at the path is another one than that which is open, or was cut."""
        ours = os.fstat(file.fileno())
        try:
            now = os.stat(self.path)
        except FileNotFoundError:  # between two files
            return False
        if (now.st_dev, now.st_ino) == (ours.st_dev, ours.st_ino) and now.st_size >= file.tell():
            return False
        print(f"{self.path} was replaced or cut: it is read anew from its begin.", file=sys.stderr)
        return True

    def _lines(self, block: bytes) -> bytes:
        """Whole lines of what was read; what follows them waits for more."""
        if self._skipping:
            place = block.find(b"\n")
            if place < 0:
                return b""
            block, self._skipping = block[place + 1 :], False
        data = self._rest + block
        cut = data.rfind(b"\n") + 1
        self._rest = data[cut:]
        if len(self._rest) > BLOCK:
            self._rest, self._skipping = b"", True
            self._fault("of a line that is too long")
        return data[:cut]

    def _rest_of_file(self) -> bytes:
        data, self._rest = self._rest, b""
        self._ended = True
        return data if data.endswith(b"\n") or not data else data + b"\n"

    def _columns(self, data: bytes) -> Iterator[dict[str, pl.Series]]:
        if self._is_json is None and data:
            data = self._checked_begin(data)
            named = self.path.removesuffix(".gz").endswith((".jsonl", ".ndjson"))
            self._is_json = named or data.lstrip().startswith(b"{")
        if data:
            found = self._from_json(data) if self._is_json else self._from_csv(data)
            if found is not None:
                yield found

    def _checked_begin(self, data: bytes) -> bytes:
        """Without a byte order mark.

        Raises:
            ValueError: if it is no text in UTF-8.
        """
        if data.startswith((b"\xff\xfe", b"\xfe\xff", b"PK\3\4", b"\x1f\x8b", b"PAR1")):
            raise ValueError(
                f"{self.path} is no text in UTF-8: it begins like UTF-16, Parquet or a compressed file."
                " Convert it, or give it its proper ending (.gz, .parquet)."
            )
        return data.removeprefix(b"\xef\xbb\xbf")

    # -- JSON lines ----------------------------------------------------------------------------

    def _from_json(self, data: bytes) -> dict[str, pl.Series]:
        found: list[list[str]] = [[] for _ in self.names]
        for line in data.split(b"\n"):
            if not line.strip():
                continue
            try:
                record = json.loads(line)
                texts = [text_of(record.get(name)) for name in self.names]
            except (ValueError, AttributeError, RecursionError):
                self._fault("that are no JSON object in UTF-8")
                continue
            self.read += 1
            for column, text in zip(found, texts, strict=True):
                column.append(text)
        return {name: column_of(texts) for name, texts in zip(self.names, found, strict=True)}

    # -- CSV -----------------------------------------------------------------------------------

    def _from_csv(self, data: bytes) -> dict[str, pl.Series] | None:
        if not self._head:
            first, _, data = data.partition(b"\n")
            self._read_head(first)
        if not data:
            return None
        plain = b'"' not in data and data.count(b"\r") == data.count(b"\r\n")
        if plain and _is_utf8(data):
            return self._from_plain(data)
        rows = list(self._rows(data.split(b"\n")[:-1]))
        return {name: column_of([row[place] for row in rows]) for name, place in self._places.items()}

    def _read_head(self, line: bytes) -> None:
        """Names of columns, and what stands between them."""
        try:
            text = line.decode("utf-8").rstrip("\r")
            heads = {mark: next(csv.reader([text], delimiter=mark, strict=True), []) for mark in ",;\t"}
        except (csv.Error, UnicodeDecodeError) as error:
            raise ValueError(f"the first line of {self.path} is no head of CSV in UTF-8: {error}.") from None
        fits = [mark for mark, head in heads.items() if set(self.names) <= set(head)]
        self._mark = fits[0] if fits else ","
        self._head = heads[self._mark]
        self._places = {name: self._place(name, self._head) for name in self.names}

    def _from_plain(self, data: bytes) -> dict[str, pl.Series] | None:
        """Lines without quotes, each of which is a record: its fields are what stands between the marks."""
        letters = np.frombuffer(data, np.uint8)
        ends = np.flatnonzero(letters == ord("\n"))
        starts = np.concatenate([[0], ends[:-1] + 1])
        marks = np.searchsorted(np.flatnonzero(letters == ord(self._mark)), np.stack([starts, ends]))
        empty = (ends == starts) | ((ends == starts + 1) & (letters[starts] == ord("\r")))
        wrong = ~empty & (marks[1] - marks[0] != len(self._head) - 1)
        self._fault("with too many or too few fields", int(np.count_nonzero(wrong)))
        self.read += int(np.count_nonzero(~empty & ~wrong))
        if (empty | wrong).any():
            kept = np.flatnonzero(~(empty | wrong))
            data = b"".join(data[starts[i] : ends[i] + 1] for i in kept.tolist())
        if not data:
            return None
        frame = pl.read_csv(
            data,
            has_header=False,
            separator=self._mark,
            quote_char=None,
            infer_schema=False,
            columns=sorted(set(self._places.values())),
        )
        return {name: frame[f"column_{place + 1}"].fill_null("") for name, place in self._places.items()}

    def _rows(self, lines: list[bytes]) -> Iterator[list[str]]:
        """Records of lines some of which have quotes, or are no text."""
        place = 0
        while place < len(lines):
            row, used = self._row(lines, place)
            if row is None and used == 0:  # it may go on in lines that are still to come
                self._rest = b"\n".join([*lines[place:], self._rest])
                return
            if row is None:
                self._fault("that are no CSV in UTF-8, or have too many or too few fields")
            elif row:
                self.read += 1
                yield row
            place += max(used, 1)

    def _row(self, lines: list[bytes], place: int) -> tuple[list[str] | None, int]:
        """(fields of the record at a line, lines that it has); None without fields if it is none.

        A line with an even number of quotes is a record or none; of others, the least number of lines with an
        even number. What is none takes one line only, so that those after it are read for themselves.
        """
        line = lines[place]
        row = self._fields([line])
        if row is not None or line.count(b'"') % 2 == 0:
            return row, 1
        quotes, letters = 0, 0
        for used, more in enumerate(lines[place : place + _LINES], 1):
            quotes, letters = quotes + more.count(b'"'), letters + len(more)
            if letters > _LETTERS:
                return None, 1
            if quotes % 2 == 0:
                row = self._fields(lines[place : place + used])
                if row is not None:
                    return row, used
        return None, 0 if place + _LINES > len(lines) and not self._ended else 1

    def _fields(self, lines: list[bytes]) -> list[str] | None:
        try:
            text = b"\n".join(lines).decode("utf-8").removesuffix("\r")
            if '"' in text:
                rows = list(csv.reader([text], delimiter=self._mark, strict=True))
            else:  # as `_from_plain`, whatever else is in the block
                rows = [text.split(self._mark)] if "\r" not in text else []
        except (csv.Error, UnicodeDecodeError):
            return None
        if rows == [[""]]:
            return []
        return rows[0] if len(rows) == 1 and len(rows[0]) == len(self._head) else None


def _bytes_of(path: str) -> IO[bytes]:
    if path == "-":
        return nullcontext(sys.stdin.buffer)  # type: ignore[return-value]
    return gzip.open(path) if path.endswith(".gz") else Path(path).open("rb")  # type: ignore[return-value]


def _is_utf8(data: bytes) -> bool:
    try:
        data.decode("utf-8")
    except UnicodeDecodeError:
        return False
    return True
