"""What a journal says: its lines, how they are chained, and where two journals of one run disagree.

A line is ASCII: a kind, its fields, and a link, the SHA-256 digest of the link before and of the line:

    authentic IDENTITY FINGERPRINT FIRST SEAL LINK   the head: whose releases, and the first one recorded
    place TOKEN SEAL LINK                            which file this is, whenever a process opens it
    release POSITION DIGEST SEAL LINK                what release POSITION was

A seal authenticates a line, all lines before it, and the time at which it was written, which it hides: only
who has the run's key can make one, or read a time. Earlier versions began journals with `keyed`, or `run`
where digests are plain ones too; they have a TIME in the place of every seal, and anybody can write their
lines.

Nothing in it is secret: an identity is a one-way function of a key of 256 bits, a digest is a function of
what was released, or one that nobody can compute without that key; and how long a step took, which could tell
what was in its batch, is hidden.
"""

from __future__ import annotations

import hashlib
import hmac
import os
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from anechoic.errors import CheckpointError
from anechoic.keys import derive

_START = hashlib.sha256(b"anechoic journal 1").hexdigest()
#: Heads, by the version of the journal; digests of the first are plain ones.
_HEADS = ("run", "keyed", "authentic")
#: Fields of each kind of line, the seal or time and the link among them.
_FIELDS = dict.fromkeys(_HEADS, 5) | {"place": 3, "release": 4}
_TAG, _TIME = 16, 8  # bytes of a seal: of the line, and of its hidden time

#: Nanoseconds.
SECOND = 10**9

_BLOCK = 2**22
DIGEST_KEY_BYTES = 64
_MANY = 4  # blocks from which on threads are worth their start
_THREADS = min(4, os.cpu_count() or 1)


def identity_of(noise_key: bytes) -> str:
    """By what a run is known: 32 hexadecimal digits that follow from its key and do not show it."""
    return derive(noise_key, "journal identity", size=16).hex()


def digest_key_of(noise_key: bytes) -> bytes:
    """The secret of a run's digests: 64 bytes that follow from its key."""
    return derive(noise_key, "journal digests", size=DIGEST_KEY_BYTES)


def digest_of(parts: Iterable[Any], key: bytes | None = None) -> str:
    """Digest of the released bits, 64 hexadecimal digits.

    Without a key, SHA-256 of the lengths of all parts and of the SHA-256 of each 4 MiB. With one,
    HMAC-SHA-256 of the lengths and of the GMAC tag of each 4 MiB, which takes a tenth of the time: tags of
    two different blocks are the same with probability 2**-109 at most over the key, whoever chose them
    without knowing it, and the HMAC hides them. Who knows the key could make two releases of one digest, and
    could as well write another journal.

    Args:
        parts: objects with the buffer protocol (bytes, NumPy arrays), each contiguous.
        key: see `digest_key_of`.

    Raises:
        ValueError: if the key is not 64 bytes long.

    References:
        NIST SP 800-38D (GMAC); Wegman and Carter 1981 (a universal hash under a pseudorandom function).
    """
    views = [memoryview(part).cast("B") if memoryview(part).nbytes else memoryview(b"") for part in parts]
    blocks = [view[start : start + _BLOCK] for view in views for start in range(0, len(view), _BLOCK)]
    lengths = b"".join(len(view).to_bytes(8, "little") for view in views)
    if key is not None:
        return _keyed(checked_digest_key(key), lengths, blocks)
    found = hashlib.sha256(lengths)
    if len(blocks) < _MANY:
        digests: Iterable[bytes] = map(_sha256, blocks)
    else:  # hashing lets other threads run
        with ThreadPoolExecutor(_THREADS) as pool:
            digests = list(pool.map(_sha256, blocks))
    for digest in digests:
        found.update(digest)
    return found.hexdigest()


def checked_digest_key(key: bytes) -> bytes:
    """`key` if it is 64 bytes long; ValueError otherwise."""
    if not isinstance(key, bytes) or len(key) != DIGEST_KEY_BYTES:
        raise ValueError(
            f"a digest key must be {DIGEST_KEY_BYTES} bytes: take runs.digest_key_of(noise_key)."
        )
    return key


def _keyed(key: bytes, lengths: bytes, blocks: list[memoryview]) -> str:
    from cryptography.hazmat.primitives.ciphers.aead import AESGCM

    gcm, found = AESGCM(key[:32]), hmac.new(key[32:], lengths, "sha256")
    for place, block in enumerate(blocks):
        # a number that another release has too would give the tags' key away, if the tags were seen
        found.update(gcm.encrypt(place.to_bytes(12, "little"), b"", block))
    return found.hexdigest()


def _sha256(block: memoryview) -> bytes:
    return hashlib.sha256(block).digest()


@dataclass(frozen=True)
class Mark:
    """How far a journal was when a checkpoint was written: no less may be found when it is read.

    Attributes:
        identity: whose releases.
        name, path: of its file, without and with the folder.
        lines: number of its lines.
        head: the link of the last of them.
    """

    identity: str
    name: str
    path: str
    lines: int
    head: str


@dataclass
class Record:
    """The lines of a journal.

    Attributes:
        identity, fingerprint: of the run and of its mechanism.
        first: position of the first release recorded.
        keyed: whether digests are under a key.
        authentic: whether lines are.
        seal: what makes and opens the seals of lines; None where they are taken unread.
        digests: of releases first, first + 1, ….
        links: one a line.
        token: which file it was when a process last opened it.
        time: of the last line, in nanoseconds since 1970, rounded up; 0 where it is hidden.
        whole: bytes up to the end of the last whole line.
        torn: whether something follows them, as after a crash in the middle of writing a line.
    """

    identity: str = ""
    fingerprint: str = ""
    first: int = 0
    keyed: bool = False
    authentic: bool = False
    seal: Seal | None = None
    digests: list[str] = field(default_factory=list)
    links: list[str] = field(default_factory=list)
    token: str = ""
    time: int = 0
    whole: int = 0
    torn: bool = False

    @property
    def end(self) -> int:
        """Position of the next release to be recorded."""
        return self.first + len(self.digests)

    @property
    def head(self) -> str:
        """The last link."""
        return self.links[-1] if self.links else _START

    def line(self, kind: str, *fields: object) -> bytes:
        """The line that comes next; the last of `fields` is its time."""
        *others, time = fields
        body = " ".join([kind, *map(str, others)])
        if self.authentic or kind == "authentic":
            if self.seal is None:
                raise ValueError("a line of this journal is under a key: give parse the run's digest key.")
            time = self.seal.made(self.head, body, int(str(time)))
        body = f"{body} {time}"
        return f"{body} {_link(self.head, body)}\n".encode("ascii")

    def take(self, line: bytes) -> bool:
        """Take the next line; False, and nothing changes, where it is not one."""
        try:
            body, _, link = line.decode("ascii").removesuffix("\n").rpartition(" ")
            kind, *fields = body.split(" ")
            if _FIELDS.get(kind) != len(fields) + 1 or _link(self.head, body) != link:
                return False
            head = kind in _HEADS
            if head == bool(self.links):
                return False
            time = self._time(kind, body)
            if head:
                self.identity, self.fingerprint, self.first = fields[0], fields[1], int(fields[2])
                self.keyed, self.authentic = kind != "run", kind == "authentic"
            elif kind == "place":
                self.token = fields[0]
            else:
                if int(fields[0]) != self.end:
                    return False
                self.digests.append(fields[1])
        except ValueError:
            return False
        self.links.append(link)
        self.time = time
        self.whole += len(line)
        return True

    def _time(self, kind: str, body: str) -> int:
        """When the line was written; ValueError where its seal is another's."""
        said, _, written = body.rpartition(" ")
        if not (self.authentic or kind == "authentic"):
            return int(written)
        return 0 if self.seal is None else self.seal.opened(self.head, said, written)


class Seal:
    """What authenticates lines and hides their times: 48 hexadecimal digits a line.

    The first 32 are of an HMAC of the link before, the line and its time; the others are the time, in
    seconds, under a mask that follows from the first (a synthetic initialisation vector).

    Args:
        key: see `digest_key_of`.

    References:
        Rogaway and Shrimpton 2006 (deterministic authenticated encryption).
    """

    def __init__(self, key: bytes) -> None:
        keys = hashlib.shake_256(b"anechoic journal lines" + checked_digest_key(key)).digest(64)
        self._tags, self._masks = keys[:32], keys[32:]

    def made(self, before: str, body: str, time: int) -> str:
        """The seal of a line that was written at `time`, whole seconds in nanoseconds."""
        seconds = time // SECOND
        tag = self._tag(before, body, seconds)
        return (tag + (seconds ^ self._mask(tag)).to_bytes(_TIME, "little")).hex()

    def opened(self, before: str, body: str, seal: str) -> int:
        """The time in a seal; ValueError where it is not of this line under this key."""
        found = bytes.fromhex(seal)
        tag = found[:_TAG]
        seconds = int.from_bytes(found[_TAG:], "little") ^ self._mask(tag)
        if len(found) != _TAG + _TIME or not hmac.compare_digest(tag, self._tag(before, body, seconds)):
            raise ValueError("the seal is of another line, or under another key.")
        return seconds * SECOND

    def _tag(self, before: str, body: str, seconds: int) -> bytes:
        text = f"{before} {body} {seconds}".encode("ascii")
        return hmac.digest(self._tags, text, "sha256")[:_TAG]

    def _mask(self, tag: bytes) -> int:
        return int.from_bytes(hmac.digest(self._masks, tag, "sha256")[:_TIME], "little")


def parse(content: bytes, name: object = "the journal", *, key: bytes | None = None) -> Record:
    """The record that the bytes of a journal hold; what follows the last line end is torn.

    Args:
        key: see `digest_key_of`. Without it seals are not checked: the file is not damaged, but anybody may
            have written it.

    Raises:
        CheckpointError: for a line that is complete and does not follow from the one before.
    """
    record = Record(seal=None if key is None else Seal(key))
    *lines, rest = content.split(b"\n")
    for number, line in enumerate(lines, 1):
        if not record.take(line + b"\n"):
            raise CheckpointError(
                f"line {number} of {name} is not one that a journal holds there: the file is damaged or was"
                " edited, so what was released cannot be told. Start a new run, whose privacy cost adds to"
                " this one's."
            )
    record.torn = bool(rest)
    return record


def read_journal(path: str | os.PathLike[str], *, digest_key: bytes | None = None) -> Record:
    """What the journal at `path` says; nothing is locked or changed.

    Args:
        path: file name.
        digest_key: see `digest_key_of`; without it nobody can tell who wrote the file.

    Raises:
        CheckpointError: if it is missing or damaged, or (with the key) edited.
    """
    try:
        return parse(Path(path).read_bytes(), path, key=digest_key)
    except OSError as error:
        raise CheckpointError(f"journal {path} cannot be read: {error.strerror or error}.") from error


def conflicts(*paths: str | os.PathLike[str]) -> list[int]:
    """Positions at which journals of one run record different releases; [] says that they agree.

    For copies of a run directory that were continued apart: one row of noise went into two releases there.

    Raises:
        CheckpointError: if one is missing or damaged.
        ValueError: if they belong to different runs.
    """
    records = [read_journal(path) for path in paths]
    if len({record.identity for record in records}) > 1:
        raise ValueError("these journals belong to different runs: compare those of one.")
    if len({record.keyed for record in records}) > 1:
        raise ValueError(
            "some of these journals have digests under a key and some have not: they differ anyway."
        )
    seen: dict[int, set[str]] = {}
    for record in records:
        for position, digest in enumerate(record.digests, record.first):
            seen.setdefault(position, set()).add(digest)
    return sorted(position for position, digests in seen.items() if len(digests) > 1)


def _link(before: str, body: str) -> str:
    return hashlib.sha256(f"{before} {body}".encode("ascii")).hexdigest()
