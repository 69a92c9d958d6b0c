"""Budget book: grants, reservations and spending, in one place that several processes share."""

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

from anechoic.budget.account import Account, Chargeable, Grant, account_of, changed, charges_of
from anechoic.budget.entries import BookEntries, BookLocation, RunProgress
from anechoic.errors import CheckpointError, GuaranteeError, MismatchError, ReplayError
from anechoic.mechanism.composition import Composition
from anechoic.runs.state_file import StateFile

_ONE = (
    "one run was charged, and this may be another. Go on from its newest state file, or from a checkpoint and"
    " the whole journal; or begin a new run, with fresh keys, or by adopt=True of a stream or server."
)


class BudgetBook:
    """Budget of one data set: its grant, what runs spent, and a refusal beyond.

    Guarantee: whatever is run under the book on these data, chosen by whatever was released before, is
    together (epsilon, delta)-DP as granted, for one unit, concurrent runs included (docs/proofs/budget.md). A
    reservation is charged before anything is released, and stays charged. Not covered: runs that are not in
    the book; a book deleted or put back to an older copy; budgets raised because of what was released.

    Args:
        place: path of a file, which the first grant makes, on a local disk; or the address of a PostgreSQL
            database, postgresql://…, which needs `anechoic[postgres]`.
        data: name of the data set, the operator's.
        who: who spends; None for the name of the user of this process.
        key: secret bytes that every user of the book has: entries cannot be edited unseen without them. None:
            an edit is seen unless all entries after it are written anew.

    Raises:
        ValueError: without a name of the data set, or for a key of fewer than 16 bytes.
    """

    def __init__(
        self, place: str | os.PathLike[str], data: str, *, who: str | None = None, key: bytes | None = None
    ) -> None:
        if not isinstance(data, str) or not data.strip():
            raise ValueError(f"data={data!r} must be the name of a data set.")
        if key is not None and (not isinstance(key, bytes) or len(key) < 16):
            raise ValueError("key must be at least 16 secret bytes, such as anechoic.noise.new_key() gives.")
        self._place = BookLocation(os.fspath(place), key)
        self.data = data
        try:
            self.who = getpass.getuser() if who is None else who
        except (KeyError, OSError):  # a container without a name for its user
            self.who = f"uid {os.getuid()}"

    def grant(
        self,
        epsilon: float,
        delta: float,
        *,
        unit: str = "example",
        adjacency: str = "zero_out",
        amplified: tuple[float, float] = (0.0, 0.0),
    ) -> None:
        """Grant (epsilon, delta) in all, or raise the grant; decide without looking at releases.

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
        """Cancel a reservation, on the caller's word that nothing was released under it.

        Raises:
            GuaranteeError: if it was spent, or there is none of this token.
        """
        self._close(token, "cancel")

    def account(self) -> Account:
        """Return grant and runs of these data, as they are now.

        Raises:
            GuaranteeError: where nothing was granted.
        """
        with self._open() as (accounts, _):
            return account_of(accounts, self.data)

    def check(self, what: Chargeable) -> None:
        """Refuse what `reserve` would refuse, and book nothing; a run that may be in the book already passes.

        Raises:
            GuaranteeError, MismatchError: as `reserve`.
        """
        account, ways = self.account(), charges_of(what)
        if not any(one.charge.like(way) for one in account.live for way in ways):
            account.choose(what)

    def reserve(
        self, what: Chargeable, *, run: str | None = None, state: StateFile | None = None
    ) -> Reservation:
        """Cost a run before it begins; one that is reserved, or whose newest state is open, is not again.

        Args:
            what: a Mechanism, an EndlessMechanism, a composition that was fixed in advance, the `cost` of a
                PartitionSelectionHistogram, or (epsilon, delta) of a release by other software for the same
                unit and adjacency, on your word.
            run: by what the run is known until it is spent; None for a new one, or for that of `state`.
            state: that was opened for the run. From here on this opening alone goes on with it. One that is
                `adopted` and not the newest is charged as a run of its own, where its noise is.

        Raises:
            GuaranteeError: if the budget does not cover it, or if nothing was granted.
            ReplayError: if a run of this name was spent, and `state` is not its newest one.
            MismatchError: for another unit or adjacency, or a run of this name with another mechanism.
            ValueError: for what has no cost.
        """
        opened = [] if state is None else state.opened_by()
        run = run if state is None or run else state.name
        with self._open() as (accounts, entries):
            account = account_of(accounts, self.data)
            at = {one.token: entries.progress(one.token) for one in account.live}
            last = {at[one.token].opening: one for one in account.live}
            known = next((last[name] for name in reversed(opened) if name in last), None)
            known = known or next((one for one in account.live if run is not None and one.run == run), None)
            fault = "" if known is None else at[known.token].fault(state)
            if known is None or (fault and state is not None and state.adopted and state.FRESH_NOISE):
                token, spent = secrets.token_hex(8), False
                said = {"token": token, "run": (opened[-1] if fault else run) or token, "what": f"{what!r}"}
                charge = asdict(account.choose(what))
                self._add(entries, kind="reserve", charge=charge, fingerprint=_fingerprint(what), **said)
            elif fault:
                raise ReplayError(f"run {known.run!r} is in the book, and {fault}: {_ONE}")
            else:
                token, spent = known.token, known.status == "spent"
                if (known.fingerprint, known.what) != (_fingerprint(what), f"{what!r}"):
                    which = f"run {run!r} is in the book with another mechanism ({known.what})"
                    raise MismatchError(f"{which}: a run keeps its mechanism. Give this one another name.")
            found = Reservation(self, token, spent)
            if state is not None:
                entries.note(token, RunProgress(opened[-1], state.steps, state.steps))
                found._opening, state.counter = opened[-1], found
        return found

    def _close(self, token: str, kind: str) -> None:
        """Spend or cancel a reservation."""
        with self._open() as (accounts, entries):
            one = account_of(accounts, self.data).runs.get(token)
            if one is None or one.status != "reserved":
                state = "unknown" if one is None else one.status
                why = "only one that is reserved can be spent or given back"
                raise GuaranteeError(f"reservation {token!r} of {self.data!r} is {state}: {why}.")
            self._add(entries, kind=kind, token=token)
            if not entries.progress(token).opening:
                entries.note(token, RunProgress(begun=1))  # without a state nothing goes on

    def show(self, *, every: bool = False) -> str:
        """Return the budget of these data and its runs, as text, or `every` budget in the book.

        The last line is the end of the book: kept elsewhere, it shows that an older copy was put back.
        """
        with self._open() as (accounts, entries):
            shown = accounts.values() if every else [account_of(accounts, self.data)]
            lines = [f"{line}" for one in shown for line in (one, *one.runs.values())]
            return "\n".join([*lines, entries.end])

    def __deepcopy__(self, memo: Any) -> BudgetBook:
        return self  # there is nothing to change in it; scikit-learn's `clone` hands it on

    def __repr__(self) -> str:
        return f"BudgetBook({self._place.name}, {self.data!r})"

    @contextmanager
    def _open(self, *, create: bool = False) -> Iterator[tuple[dict[str, Account], BookEntries]]:
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

    def _add(self, entries: BookEntries, **entry: Any) -> None:
        now = datetime.now(UTC).isoformat(timespec="seconds")
        entries.add({"data": self.data, "who": self.who, "time": now, **entry})

    def _there(self, create: bool = False) -> BookLocation:
        if not create and not self._place.remote and not Path(self._place.place).exists():
            raise GuaranteeError(f"there is no budget book {self._place.name}: BudgetBook.grant makes it.")
        return self._place


class Reservation:
    """A run in the book, charged, which knows it by its `token`; `spend` it before the first release."""

    def __init__(self, book: BudgetBook, token: str, spent: bool = False) -> None:
        self._book, self.token, self._spent, self._opening = book, token, spent, ""

    def spend(self) -> None:
        """Spend the reservation before a release: it cannot be given back any more."""
        if not self._spent:
            self._book._close(self.token, "spend")
            self._spent = True

    def follow(self, state: StateFile) -> None:
        """Follow a state of the run that this process has begun or opened."""
        opened = [self._opening, *state.opened_by()]
        self._opening, state.counter = opened[-1], self
        self._note(state.steps, state.steps, *opened)

    def begin(self, steps: int) -> None:
        """Record that so many releases are about to be made, before the state holds them.

        Raises:
            GuaranteeError: as `done`, and where the reservation was given back.
        """
        self.spend()
        if self._opening:
            self._note(steps, done=None)

    def done(self, steps: int) -> None:
        """Record that the state holds so many releases; then they may be seen.

        Raises:
            GuaranteeError: where another opening of the state goes on.
        """
        self._note(steps, steps)

    def _note(self, begun: int, done: int | None, *before: str) -> None:
        """Write the progress of the run, which this opening or one of those `before` goes on with."""
        with self._book._there().open() as entries:
            held = entries.progress(self.token)
            if held.opening not in (self._opening, *before) or held.done > begun:
                raise GuaranteeError(
                    f"run {self.token} in the book goes on in another opening of its state, or the book was"
                    " put back: nothing more is released here. Open the newest state again."
                )
            entries.note(self.token, RunProgress(self._opening, begun, held.done if done is None else done))


def booked(book: BudgetBook, cost: Chargeable, state: Any, name: str | None = None) -> Reservation:
    """Cost a run by its state, on disk or in memory, which is closed where that is refused."""
    try:
        return book.reserve(cost, run=name, state=state if isinstance(state, StateFile) else None)
    except BaseException:
        if state is not None:
            state.close()
        raise


def _fingerprint(what: Chargeable) -> str:
    """Of a mechanism; of a composition, those of its parts; "" of a pair."""
    charges_of(what)  # refuses what is none of these
    if isinstance(what, Composition):
        return "+".join(f"{count}x{part.fingerprint}" for part, count in what.parts)
    return "" if isinstance(what, tuple) else what.fingerprint
