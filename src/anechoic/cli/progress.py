"""Refusals of the command line: files and packages that are missing."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path

from anechoic._patience import patience
from anechoic.errors import AnechoicError, MismatchError


@contextmanager
def naming(file: Path) -> Iterator[None]:
    """Name the file that is no mechanism, or another one than it says; say that its guarantee takes time."""
    try:
        with patience(f"computing the guarantee of {file} again"):
            yield
    except MismatchError as error:
        raise MismatchError(f"{file}: {error}") from error


def text_of(file: Path) -> str:
    try:
        return file.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        with file.open("rb") as opened:
            if opened.read(6) == b"SQLite":
                raise ValueError(
                    f"{file} is a state file or a budget book, and no mechanism file: for the statement of a"
                    " stream run its command again with --statement html=FILE, or call streaming.statement."
                ) from None
        raise ValueError(f"{file} is not a mechanism file: {error}.") from error


def need(*modules: str, extras: str) -> None:
    """Refuse to start without the packages of the extras."""
    missing = [name for name in modules if find_spec(name) is None]
    if missing:
        raise AnechoicError(
            f"this command needs {', '.join(missing)}, which is not installed: pip install"
            f" 'anechoic[{extras}]'"
        )


def one_line(error: BaseException) -> str:
    if isinstance(error, OSError) and error.filename is not None and error.strerror:
        return f"{error.filename}: {error.strerror}"
    return " ".join(str(error).split()) or type(error).__name__


def version() -> str:
    from importlib import metadata

    try:
        return metadata.version("anechoic")
    except metadata.PackageNotFoundError:
        return "(not installed as a package)"
