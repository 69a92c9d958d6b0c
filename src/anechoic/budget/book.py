"""The budget book: grants, reservations, and what was spent, in one place that several processes share."""

from __future__ import annotations

import getpass
import os
import secrets
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from anechoic.budget.account import Account, Booked, Cost, Grant, account_of, changed, charges_of
from anechoic.budget.entries import Entries, Place
from anechoic.errors import CheckpointError, GuaranteeError, MismatchError, ReplayError
from anechoic.keys import derive
from anechoic.mechanism.composition import Composition
from anechoic.runs.progress import Progress
from anechoic.runs.state_file import StateFile

_ONE = (
    "one run was charged, and this may be another. Go on from the newest state file, or from a checkpoint with"
    " its whole journal; or begin a new run, with fresh keys where keys are given (adopt=True, --adopt, makes"
    " one of the state of a stream or server), which is charged too."
)


class BudgetBook:
    """Who spent what on one data set, and a refusal beyond what its operator granted.

    Guarantee: whatever is run under the book on these data, chosen by whatever was released before, is
    together (epsilon, delta)-DP as granted, for one unit, runs that are under way at once included. See
    docs/proofs/budget.md. A reservation is charged before anything is released, and stays charged where the
    process ends in between. Not covered: runs that are not in the book; a book that is deleted, or put back
    to an older copy; budgets that were raised because of what was released.

    Args:
        place: path of a file, which the first grant makes, on a local disk; or the address of a PostgreSQL
            database, postgresql://…, which needs `anechoic[postgres]`.
        data: name of the data set, the operator's.
        who: who spends; None for the name of the user of this process.
        key: secret bytes that every user of the book has: entries cannot be edited unseen without them. None:
            an edit is seen unless all entries after it are written anew.

    Raises:
        ValueError: without a name of the data set, or for a key of fewer than 16 bytes.

    Example:
        >>> import tempfile, os, anechoic as an
        >>> from anechoic.budget import BudgetBook
        >>> book = BudgetBook(os.path.join(tempfile.mkdtemp(), "budget.db"), "visits")
        >>> book.grant(epsilon=2.0, delta=1e-6)
        >>> sampling = an.sampling.External(an.participation.Single(), 1, steps=24)
        >>> mechanism = an.calibrate(an.strategies.Identity(24), sampling=sampling, epsilon=1.5, delta=1e-6)
        >>> book.reserve(mechanism, run="report of May").spend()
        >>> try:
        ...     book.reserve(mechanism, run="report of June")
        ... except an.AnechoicError as error:
        ...     print(type(error).__name__)
        GuaranteeError
    """

    def __init__(
        self, place: str | os.PathLike[str], data: str, *, who: str | None = None, key: bytes | None = None
    ) -> None:
        if not isinstance(data, str) or not data.strip():
            raise ValueError(f"data={data!r} must be the name of a data set.")
        if key is not None and (not isinstance(key, bytes) or len(key) < 16):
            raise ValueError("key must be at least 16 secret bytes, such as anechoic.noise.new_key() gives.")
        self._place = Place(os.fspath(place), key)
        self.data = data
        self.who = _user() if who is None else who

    # -- the operator's side -------------------------------------------------------------------

    def grant(
        self,
        epsilon: float,
        delta: float,
        *,
        unit: str = "example",
        adjacency: str = "zero_out",
        amplified: tuple[float, float] = (0.0, 0.0),
    ) -> None:
        """Allow (epsilon, delta) in all, or raise what was granted; decide without looking at releases.

        Args:
            epsilon, delta: of everything together.
            unit, adjacency: what is protected, the same in every run.
            amplified: the part (epsilon, delta) of it for runs that count by their own (epsilon, delta):
                amplified ones, and those of other software. Amplified runs may also count without their
                amplification, as Gaussian.

        Raises:
            ValueError: for values out of range.
            MismatchError: for another unit or adjacency than before.
            GuaranteeError: if a limit would shrink.
        """
        wanted = Grant(self.data, epsilon, delta, unit, adjacency, amplified)
        with self._open(create=True) as (accounts, entries):
            if self.data in accounts:
                wanted.check_raises(accounts[self.data].grant)
            self._add(entries, kind="grant", **asdict(wanted))

    def cancel(self, token: str) -> None:
        """Give a reservation back, on the caller's word that nothing was released under it.

        Raises:
            GuaranteeError: if it was spent, or there is none of this token.
        """
        self._close(token, "cancel")

    def account(self) -> Account:
        """The grant and the runs of these data, as they are now.

        Raises:
            GuaranteeError: where nothing was granted.
        """
        with self._open() as (accounts, _):
            return account_of(accounts, self.data)

    # -- the runs' side ------------------------------------------------------------------------

    def check(self, what: Cost) -> None:
        """Refuse what `reserve` would refuse, and book nothing; a run that may be in the book already passes.

        Raises:
            GuaranteeError, MismatchError: as `reserve`.
        """
        account = self.account()
        try:
            account.choose(what)
        except GuaranteeError as error:
            ways = charges_of(what)
            known = any(one.charge.like(way) for one in account.live for way in ways)
            if isinstance(error, MismatchError) or not known:
                raise

    def reserve(self, what: Cost, *, run: str | None = None) -> Reservation:
        """Charge a run before it begins; one that is reserved is not charged again.

        Args:
            what: a Mechanism, an EndlessMechanism, a composition that was fixed in advance, the `cost` of an
                OpenHistogram, or (epsilon, delta) of a release by other software for the same unit and
                adjacency, on your word.
            run: by what the run is known until it is spent; None for a new one.

        Raises:
            GuaranteeError: if the budget does not cover it, if a run of this name was spent, or if nothing
                was granted.
            MismatchError: for another unit or adjacency, or a run of this name with another mechanism.
            ValueError: for what has no cost.
        """
        with self._open() as (accounts, entries):
            account = account_of(accounts, self.data)
            known = next((one for one in account.live if run is not None and one.run == run), None)
            if known is None:
                return Reservation(self, self._charge(account, entries, what, run))
            _check_same(known, what)
            if known.status == "spent":
                raise GuaranteeError(f"run {run!r} is in the book, and spent: {_ONE}")
            return Reservation(self, known.token)

    def follow(self, what: Cost, state: StateFile, run: str) -> Reservation:
        """Charge the run of a state that was opened, once, as long as that state is the newest.

        The run is the one whose last opening is among those of the state. From here on this opening alone
        goes on with it.

        Args:
            run: the name of the run, for a state that the book does not know.

        Raises:
            ReplayError: if the state is behind what was released, or another opening went on from it; with
                `adopt` it is charged as a run of its own, where its noise is not drawn again.
            GuaranteeError, MismatchError: as `reserve`.
        """
        opened = state.opened_by()
        with self._open() as (accounts, entries):
            account = account_of(accounts, self.data)
            by_opening = {entries.progress(one.token).opening: one for one in account.live}
            known = next((one for name, one in by_opening.items() if name in opened), None)
            known = known or next((one for one in account.live if one.run == run), None)
            fault = ""
            if known is not None:
                progress = entries.progress(known.token)
                fault = progress.fault(state) or (
                    "it was spent without a state" if not progress.opening and known.status == "spent" else ""
                )
            if fault and not (state.adopted and state.FRESH_NOISE):
                raise ReplayError(f"{state.path} is not the newest state of its run: {fault}: {_ONE}")
            if known is not None and not fault:
                _check_same(known, what)
                token, spent = known.token, known.status == "spent"
            else:
                token, spent = self._charge(account, entries, what, opened[-1] if fault else run), False
            entries.note(token, Progress(opened[-1], state.steps))
        state.counter = found = Reservation(self, token, opened[-1], spent)
        return found

    def _charge(self, account: Account, entries: Entries, what: Cost, run: str | None) -> str:
        """Reserve a new run; its token."""
        token, charge = secrets.token_hex(8), asdict(account.choose(what))
        said = {"token": token, "run": token if run is None else str(run), "what": f"{what!r}"}
        self._add(entries, kind="reserve", charge=charge, fingerprint=_fingerprint(what), **said)
        return token

    def _note(self, token: str, progress: Progress, before: Collection[str]) -> None:
        """Write how far a run is that one of the openings `before` goes on with."""
        with self._there().open() as entries:
            held = entries.progress(token)
            if held.opening not in before or held.step > progress.step:
                raise GuaranteeError(
                    f"run {token} of {self.data!r} goes on in another opening of its state, or the book was"
                    " put back: nothing more is released here. Open the newest state again."
                )
            entries.note(token, progress)

    def _close(self, token: str, kind: str) -> None:
        """Spend or cancel a reservation."""
        with self._open() as (accounts, entries):
            one = account_of(accounts, self.data).runs.get(token)
            if one is None or one.status != "reserved":
                state = "unknown" if one is None else one.status
                raise GuaranteeError(
                    f"reservation {token!r} of {self.data!r} is {state}: only one that is reserved can be"
                    " spent or given back."
                )
            self._add(entries, kind=kind, token=token)

    # -- for people ----------------------------------------------------------------------------

    def show(self, *, every: bool = False) -> str:
        """The budget of these data and its runs, as text, or `every` budget in the book.

        The last line is the end of the book: kept elsewhere, it shows that an older copy was put back.
        """
        with self._open() as (accounts, entries):
            shown = accounts.values() if every else [account_of(accounts, self.data)]
            lines = [line for one in shown for line in (str(one), *map(_line, one.runs.values()))]
            return "\n".join([*lines, entries.end])

    def __deepcopy__(self, memo: Any) -> BudgetBook:
        return self  # there is nothing to change in it; scikit-learn's `clone` hands it on

    def __repr__(self) -> str:
        return f"BudgetBook({self._place.name}, {self.data!r})"

    # -- inside --------------------------------------------------------------------------------

    @contextmanager
    def _open(self, *, create: bool = False) -> Iterator[tuple[dict[str, Account], Entries]]:
        with self._there(create).open() as entries:
            accounts: dict[str, Account] = {}
            try:
                for entry in entries.all():
                    changed(accounts, entry)
            except (KeyError, TypeError, ValueError) as error:
                raise CheckpointError(
                    f"{self._place.name} is no budget book of this version: {error}."
                ) from error
            yield accounts, entries

    def _add(self, entries: Entries, **entry: Any) -> None:
        now = datetime.now(UTC).isoformat(timespec="seconds")
        entries.add({"data": self.data, "who": self.who, "time": now, **entry})

    def _there(self, create: bool = False) -> Place:
        if not create and not self._place.remote and not Path(self._place.place).exists():
            raise GuaranteeError(
                f"there is no budget book {self._place.name}, so nothing was granted: BudgetBook.grant makes"
                " it."
            )
        return self._place


class Reservation:
    """A run in the book, charged; `spend` it before the first release.

    Attributes:
        token: by which the book knows it.
    """

    def __init__(self, book: BudgetBook, token: str, opening: str = "", spent: bool = False) -> None:
        self._book, self.token = book, token
        self._opening, self._spent = opening, spent

    def spend(self) -> None:
        """Something is about to be released: from here on the reservation cannot be given back."""
        if not self._spent:
            self._book._close(self.token, "spend")
            self._spent = True

    def begin(self, steps: int) -> None:
        """Note that releases up to so many are about to be made, before the state holds them.

        Raises:
            GuaranteeError: where another opening of the state goes on, or the reservation was given back.
        """
        self.spend()
        if self._opening:
            self._book._note(self.token, Progress(self._opening, steps, done=False), [self._opening])

    def done(self, steps: int) -> None:
        """Note that the state holds so many releases; then they may be seen.

        Raises:
            GuaranteeError: as `begin`.
        """
        self._book._note(self.token, Progress(self._opening, steps), [self._opening])

    def follow(self, state: StateFile) -> None:
        """Go on in a state that this process has begun for the run, or has opened again."""
        opened = state.opened_by()
        self._book._note(self.token, Progress(opened[-1], state.steps), [self._opening, *opened])
        self._opening, state.counter = opened[-1], self


def booked(book: BudgetBook, cost: Cost, state: Any, name: str | None = None) -> Reservation:
    """Charge a run, once however often its state is opened; the state is closed where that is refused.

    Args:
        state: a `StateFile` that was opened, or a state in memory.
        name: of the run; None for one that follows from the state.

    Raises:
        GuaranteeError, MismatchError: as `BudgetBook.reserve` and `BudgetBook.follow`.
    """
    if not isinstance(state, StateFile):
        return book.reserve(cost, run=name)
    try:
        name = name or derive(state.key, f"budget {state.salt.hex()}", size=16).hex()
        return book.follow(cost, state, name)
    except BaseException:
        state.close()
        raise


def _check_same(known: Booked, what: Cost) -> None:
    if (known.fingerprint, known.what) != (_fingerprint(what), f"{what!r}"):
        raise MismatchError(
            f"run {known.run!r} is in the book with another mechanism ({known.what}): a run keeps its"
            " mechanism. Give the new one another name, or fresh keys."
        )


def _fingerprint(what: Cost) -> str:
    """Of a mechanism; of a composition, those of its parts; "" of a pair."""
    charges_of(what)  # refuses what is none of these
    if isinstance(what, Composition):
        return "+".join(f"{count}x{part.fingerprint}" for part, count in what.parts)
    return "" if isinstance(what, tuple) else what.fingerprint


def _line(one: Booked) -> str:
    return (
        f"  {one.token}  {one.time}  {one.status:<9}  {one.who}: {one.charge}; run {one.run[:32]}, {one.what}"
    )


def _user() -> str:
    try:
        return getpass.getuser()
    except (KeyError, OSError):  # a container without a name for its user
        return f"uid {os.getuid()}"
