"""By what a client signs the keys of a masked round, and whose signatures it takes.

Keys in OpenSSH's form, as `ssh-keygen -t ed25519 -N "" -f signing-key` writes them; whom a client knows is a
file of such public keys, a line each, like OpenSSH's `authorized_keys` without options.
"""

from __future__ import annotations

import os
from collections.abc import Collection
from dataclasses import dataclass, field
from pathlib import Path

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
from cryptography.hazmat.primitives.serialization import load_ssh_private_key, load_ssh_public_key
from flwr.app import Context

from anechoic.federated.secure_sum.keys import checked_identity, identity_of
from anechoic.keys import checked_key

#: Entries of `node_config` that `Signer.of_node` reads: paths of files.
KEY_ENTRY, KNOWN_ENTRY = "signing-key", "known-signers"


@dataclass(frozen=True)
class Signer:
    """A client's own Ed25519 key, and those of all clients that it makes masks with.

    The list of known keys is what a client trusts in the place of the server: it comes from somewhere else,
    such as the operator of the federation's nodes.

    Attributes:
        private: 32 secret bytes.
        known: public keys, 32 bytes each, its own included.

    Raises:
        ValueError: for keys of another length or kind, or where its own is not among the known ones.

    Example:
        >>> from anechoic.federated.secure_sum import identity_of
        >>> private = bytes(range(32))
        >>> Signer(private, [identity_of(private), identity_of(bytes(32))]).public == identity_of(private)
        True
    """

    private: bytes = field(repr=False)
    known: Collection[bytes]

    def __post_init__(self) -> None:
        object.__setattr__(self, "private", checked_key(self.private, "private"))
        known = frozenset(checked_identity(key, "a key in known") for key in self.known)
        object.__setattr__(self, "known", known)
        if self.public not in known:
            raise ValueError("known lacks this client's own public key: list those of all clients.")

    @property
    def public(self) -> bytes:
        """The public key, 32 bytes, for `CorrelatedFedOpt(signers=…)`."""
        return identity_of(self.private)

    @classmethod
    def of_files(cls, key: str | os.PathLike[str], known: str | os.PathLike[str]) -> Signer:
        """From OpenSSH's files.

        Args:
            key: path of a private key without a passphrase.
            known: path of public keys, a line each.

        Raises:
            ValueError: for a file that is not there, or holds something else.
        """
        try:
            loaded = load_ssh_private_key(_bytes(key), password=None)
        except (ValueError, TypeError) as error:  # TypeError: it has a passphrase
            raise ValueError(f"{key} holds no OpenSSH private key without a passphrase ({error})") from error
        if not isinstance(loaded, Ed25519PrivateKey):
            raise ValueError(f"{key} holds another kind of key: make one by ssh-keygen -t ed25519.")
        return cls(loaded.private_bytes_raw(), list(read_signers(known).values()))

    @classmethod
    def of_node(cls, context: Context) -> Signer:
        """From the files that a node's `node_config` names under "signing-key" and "known-signers".

        Raises:
            ValueError: where it names none, and as `of_files`.
        """
        config = context.node_config
        missing = [name for name in (KEY_ENTRY, KNOWN_ENTRY) if name not in config]
        if missing:
            raise ValueError(f"node_config lacks {missing}: paths of the node's key and of those it knows.")
        return cls.of_files(str(config[KEY_ENTRY]), str(config[KNOWN_ENTRY]))


def read_signers(path: str | os.PathLike[str]) -> dict[str, bytes]:
    """Public keys by the name behind each, from lines such as "ssh-ed25519 AAAA… node-7".

    Raises:
        ValueError: for a line that is something else, or a name that stands there twice.
    """
    found: dict[str, bytes] = {}
    for number, line in enumerate(_bytes(path).splitlines(), start=1):
        words = line.split(maxsplit=2)
        if not words or words[0].startswith(b"#"):
            continue
        name = words[2].decode("utf-8", "replace") if len(words) == 3 else f"line {number}"
        try:
            key = load_ssh_public_key(b" ".join(words[:2]))
        except ValueError as error:
            raise ValueError(f"{path}, line {number}: no OpenSSH public key ({error}).") from error
        if not isinstance(key, Ed25519PublicKey):
            raise ValueError(f"{path}, line {number}: not an ssh-ed25519 key.")
        if name in found:
            raise ValueError(f"{path}, line {number}: {name!r} stands there twice.")
        found[name] = key.public_bytes_raw()
    return found


def _bytes(path: str | os.PathLike[str]) -> bytes:
    try:
        return Path(path).read_bytes()
    except OSError as error:
        raise ValueError(f"{path} cannot be read: {error.strerror}.") from error
