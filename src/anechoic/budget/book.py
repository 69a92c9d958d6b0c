"""The budget book: grants, reservations, and what was spent, in one place that several processes share."""

from __future__ import annotations

import getpass
import os
import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from anechoic.budget.account import Account, Booked, Cost, Grant, account_of, changed, charges_of
from anechoic.budget.entries import Entries
from anechoic.errors import CheckpointError, GuaranteeError, MismatchError
from anechoic.keys import derive
from anechoic.mechanism.composition import Composition


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
        self._entries = Entries(os.fspath(place), key)
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
        with self._open(create=True) as (accounts, add):
            if self.data in accounts:
                wanted.check_raises(accounts[self.data].grant)
            add(kind="grant", **asdict(wanted))

    def cancel(self, token: str) -> None:
        """Give a reservation back, on the caller's word that nothing was released under it.

        Raises:
            GuaranteeError: if it was spent, or there is none of this token.
        """
        with self._open() as (accounts, add):
            self._still_reserved(accounts, token)
            add(kind="cancel", token=token)

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

    def reserve(self, what: Cost, *, run: str | None = None, goes_on: bool = False) -> Reservation:
        """Charge a run before it begins; one that is reserved, or goes on, is not charged again.

        Args:
            what: a Mechanism, an EndlessMechanism, a composition that was fixed in advance, the `cost` of an
                OpenHistogram, or (epsilon, delta) of a release by other software for the same unit and
                adjacency, on your word.
            run: by what the run is known when it goes on; None for a new one.
            goes_on: on your word, that this is the run of that name, which goes on from a state file or a
                checkpoint that it wrote: it makes no release again otherwise than it was.

        Raises:
            GuaranteeError: if the budget does not cover it, if a run of this name was spent and this one does
                not go on from it, or if nothing was granted.
            MismatchError: for another unit or adjacency, or a run of this name with another mechanism.
            ValueError: for what has no cost.
        """
        fingerprint, said = _fingerprint(what), f"{what!r}"
        with self._open() as (accounts, add):
            account = account_of(accounts, self.data)
            known = next((one for one in account.live if run is not None and one.run == run), None)
            if known is not None:
                if (known.fingerprint, known.what) != (fingerprint, said):
                    raise MismatchError(
                        f"run {run!r} is in the book with another mechanism ({known.what}): a run keeps its"
                        " mechanism. Give the new one another name, or fresh keys."
                    )
                if known.status == "spent" and not goes_on:
                    raise GuaranteeError(
                        f"run {run!r} is in the book, and spent: one run was charged, and this may be"
                        " another. Go on from a checkpoint or state file of it, with its journal; or give the"
                        " new one another name, or fresh keys."
                    )
                return Reservation(self, known.token, goes_on)
            token, charge = secrets.token_hex(8), account.choose(what)
            run = token if run is None else str(run)
            entry = {"token": token, "run": run, "what": said, "fingerprint": fingerprint}
            add(kind="reserve", charge=asdict(charge), **entry)
        return Reservation(self, token)

    def _spend(self, token: str, goes_on: bool) -> None:
        with self._open() as (accounts, add):
            one = account_of(accounts, self.data).runs[token]
            if one.status != "spent" or not goes_on:  # two may have reserved one run: one of them is it
                self._still_reserved(accounts, token)
                add(kind="spend", token=token)

    def _still_reserved(self, accounts: dict[str, Account], token: str) -> None:
        one = account_of(accounts, self.data).runs.get(token)
        if one is None or one.status != "reserved":
            state = "unknown" if one is None else one.status
            raise GuaranteeError(
                f"reservation {token!r} of {self.data!r} is {state}: only one that is reserved can be spent"
                " or given back."
            )

    # -- for people ----------------------------------------------------------------------------

    def show(self, *, every: bool = False) -> str:
        """The budget of these data and its runs, as text, or `every` budget in the book.

        The last line is the end of the book: kept elsewhere, it shows that an older copy was put back.
        """
        with self._open() as (accounts, _):
            shown = accounts.values() if every else [account_of(accounts, self.data)]
            lines = [line for one in shown for line in (str(one), *map(_line, one.runs.values()))]
            return "\n".join([*lines, f"{self._entries.end}"])

    def __deepcopy__(self, memo: Any) -> BudgetBook:
        return self  # there is nothing to change in it; scikit-learn's `clone` hands it on

    def __repr__(self) -> str:
        return f"BudgetBook({self._entries.name}, {self.data!r})"

    # -- inside --------------------------------------------------------------------------------

    @contextmanager
    def _open(self, *, create: bool = False) -> Iterator[tuple[dict[str, Account], Any]]:
        place = self._entries
        if not create and not place.remote and not Path(place.place).exists():
            raise GuaranteeError(
                f"there is no budget book {place.name}, so nothing was granted: BudgetBook.grant makes it."
            )
        with place.open() as (entries, write):
            accounts: dict[str, Account] = {}
            try:
                for entry in entries:
                    changed(accounts, entry)
            except (KeyError, TypeError, ValueError) as error:
                raise CheckpointError(f"{place.name} is no budget book of this version: {error}.") from error

            def add(**entry: Any) -> None:
                now = datetime.now(UTC).isoformat(timespec="seconds")
                write({"data": self.data, "who": self.who, "time": now, **entry})

            yield accounts, add


class Reservation:
    """A run in the book, charged; `spend` it before the first release.

    Attributes:
        token: by which the book knows it.
    """

    def __init__(self, book: BudgetBook, token: str, goes_on: bool = False) -> None:
        self._book, self.token = book, token
        self._goes_on, self._spent = goes_on, False

    def spend(self) -> None:
        """Something is about to be released: from here on the reservation cannot be given back."""
        if not self._spent:
            self._book._spend(self.token, self._goes_on)
            self._spent = True


def booked(book: BudgetBook, cost: Cost, run: Any) -> Reservation:
    """The cost of a stream or server in a book, once however often its state is opened.

    Raises:
        GuaranteeError, MismatchError: as `BudgetBook.reserve`; the state is closed then.
    """
    state, goes_on = run._state, run.step > 0
    name = derive(state.key, f"budget {state.salt.hex()}", size=16).hex()
    if not goes_on and any((one.run, one.status) == (name, "spent") for one in book.account().live):
        # its first release failed, or is missing here: what is made now has other noise, and another cost
        name = derive(state.key, f"budget {state.openings[-1][1].hex()}", size=16).hex()
    try:
        return book.reserve(cost, run=name, goes_on=goes_on)
    except BaseException:
        run._give_back()
        raise


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
