"""Check that a mechanism promises what a server enforces."""

from __future__ import annotations

import math
from typing import Any

from anechoic._validate import positive_float, positive_int
from anechoic.errors import MismatchError
from anechoic.federated.participation_policy import checked_policy
from anechoic.mechanism.mechanism import Mechanism


def check_fits(mechanism: Any, policy: Any, clients_per_round: int, clip_norm: float | None) -> None:
    """Refuse a mechanism that is not for the rounds of this server.

    Raises:
        ValueError: if one of them is of another kind.
        MismatchError: if the guarantee would not be that of the rounds.
    """
    if not isinstance(mechanism, Mechanism):
        raise ValueError(
            f"mechanism is a {type(mechanism).__name__}; it must be an anechoic.Mechanism, as"
            " federated.plan_rounds makes one; of a plan it is plan.mechanism."
        )
    checked_policy(policy)
    positive_int("clients_per_round", clients_per_round)
    check_rounds(mechanism)
    sampling = mechanism.sampling
    if sampling.expected_batch_size != clients_per_round:
        raise MismatchError(
            f"the mechanism divides by {sampling.expected_batch_size}, but clients_per_round="
            f"{clients_per_round}: the divisor is the constant number of clients that a round asks. Plan"
            f" with clients_per_round={clients_per_round}."
        )
    if mechanism.participation != policy.participation:
        raise MismatchError(
            f"the mechanism is for {mechanism.participation!r}, but {policy!r} enforces"
            f" {policy.participation!r}: calibrate for that one, or change the policy."
        )
    if clip_norm is not None and positive_float("clip_norm", clip_norm) != mechanism.clip_norm:
        raise MismatchError(
            f"clip_norm={clip_norm!r}, but the mechanism's is {mechanism.clip_norm!r}: leave the argument"
            " out, or plan with it."
        )


def asked_per_round(clients_per_round: int, over_selection: float) -> int:
    """Most clients asked in a round: the first `clients_per_round` replies of them are taken."""
    part = over_selection and positive_float("over_selection", over_selection)
    return math.ceil(round(clients_per_round * (1 + part), 9))


def check_fewest(min_replies: int, clients_per_round: int) -> int:
    """`min_replies`, from 1 to `clients_per_round`."""
    if positive_int("min_replies", min_replies) > clients_per_round:
        raise ValueError(
            f"min_replies={min_replies} exceeds clients_per_round={clients_per_round}: no round could be"
            " released. Ask more clients, or let fewer answers be enough."
        )
    return int(min_replies)


def check_rounds(mechanism: Mechanism) -> None:
    """Refuse what no round of clients can have as its guarantee.

    Raises:
        MismatchError: for another sampling or unit. No mechanism is for rounds formed outside and adjacency
            "add_or_remove": a client who is not there at all changes who else is chosen.
    """
    if not mechanism.sampling.formed_outside:
        claim = ", and claims amplification by it" if mechanism.amplified else ""
        raise MismatchError(
            f"mechanism.sampling is {type(mechanism.sampling).__name__}{claim}: which clients are there"
            " is not a secret draw of the server's, so rounds are formed outside. Give"
            " sampling=External(participation, clients_per_round, steps=rounds)."
        )
    if mechanism.unit == "example":
        raise MismatchError(
            "the mechanism protects one example, but a round asks clients, who hold many: calibrate with"
            " unit='client' or 'user'."
        )
