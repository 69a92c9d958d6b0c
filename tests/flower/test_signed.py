"""Signed masked sums over Flower's messages: a server that hands out keys of its own gets nothing."""

import base64

import numpy as np
import pytest
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat, PublicFormat
from flwr.app import ConfigRecord, Message, MessageType, RecordDict

from anechoic.federated.secure_sum import Stage, identity_of
from anechoic.federated.secure_sum.keys import KeyPair, sign
from anechoic.federated.secure_sum.roster import Entry
from anechoic.federated.secure_sum.server import SumServer
from anechoic.flower import ClippedUpdate, InProcessGrid, Signer, read_signers
from anechoic.flower.masked import context_of, digest_of, fields_of, records_of
from anechoic.flower.records import record_of
from tests.flower import small

PRIVATE = [bytes([node + 1]) * 32 for node in range(small.CLIENTS)]
KNOWN = [identity_of(private) for private in PRIVATE]
SIGNERS = dict(enumerate(KNOWN))
MANY = 6


def signer_of(context):
    return Signer(PRIVATE[context.node_config["partition-id"]], KNOWN)


SIGNING = ClippedUpdate(signer=signer_of)


def strategy(**options):
    found = {"clients_per_round": MANY, "discipline": small.CoolDown(2), "masked": True, "signers": SIGNERS}
    return small.strategy(**{**found, **options})


class Watched(InProcessGrid):
    """Keeps what clients answered, by stage; `change` is called with every request of the server."""

    change = staticmethod(lambda fields: fields)

    def push_messages(self, messages):
        messages = list(messages)
        for message in messages:
            fields = fields_of(message.content)
            if fields is not None:
                for name, value in self.change(fields).items():
                    message.content["masked"][name] = value
        return super().push_messages(messages)

    def pull_messages(self, message_ids):
        found = list(super().pull_messages(message_ids))
        for reply in found:
            fields = fields_of(reply.content) if reply.has_content() else None
            if fields is not None:
                self.stages.append(Stage(fields["stage"]))
        return found


def watched(mod=SIGNING, change=None):
    grid = Watched(small.client_app(mod=mod), small.CLIENTS)
    grid.stages = []
    if change is not None:
        grid.change = change
    return grid


def test_signed_sums_release_the_models_of_unsigned_ones():
    signed, found = small.run(strategy(), watched())
    plain, _ = small.run(strategy(signers=None), watched(ClippedUpdate()))
    small.same(signed, plain)
    assert found.stopped is None and len(signed) == small.ROUNDS
    words = found.statement()
    assert "within one sum" in words and "signed by nobody" not in words
    assert "is checked" not in words, "no client checks how many sums its update is in"
    assert words.count("no second sum") == 2, "of the server's section and of Flower's"


class Swaps:
    """The server in the middle: keys of its own in the place of the first client's, signed as it can."""

    def __init__(self, monkeypatch, sign_as):
        self.servers = []
        real = SumServer.__init__

        def made(own, *arguments, **options):
            real(own, *arguments, **options)
            self.servers.append(own)

        monkeypatch.setattr(SumServer, "__init__", made)
        self.sign_as = sign_as

    def __call__(self, fields):
        if fields["stage"] != Stage.SHARES:
            return {}
        keys = {"encryption_keys": KeyPair.fresh().public, "mask_keys": KeyPair.fresh().public}
        if "identities" in fields:
            terms, seat = self.servers[-1].terms, fields["seats"][0]
            statement = Entry(*keys.values()).statement(terms, seat)
            keys["signatures"] = sign(self.sign_as, statement)
            if self.sign_as not in PRIVATE:
                keys["identities"] = identity_of(self.sign_as)
        return {name: [key, *fields[name][1:]] for name, key in keys.items()}


@pytest.mark.parametrize("sign_as", [bytes([99]) * 32, PRIVATE[11]], ids=["a stranger", "another client"])
def test_a_server_that_swaps_keys_gets_no_answer(monkeypatch, sign_as):
    grid = watched(change=Swaps(monkeypatch, sign_as))
    _, found = small.run(strategy(patience=0.0), grid, rounds=1)
    assert found.report().released == 0 and found.stopped is not None
    assert set(grid.stages) == {Stage.KEYS}, "no share and no masked vector leaves a client"


def test_without_signatures_clients_cannot_tell(monkeypatch):
    """What signatures are for: the same server is answered by the clients whose own keys it left alone."""
    grid = watched(ClippedUpdate(), change=Swaps(monkeypatch, b""))
    small.run(strategy(signers=None, patience=0.0), grid, rounds=1)
    assert grid.stages.count(Stage.SHARES) == MANY - 1


def sum_of(grid, places, step, silent=()):
    """One signed sum of all clients but the silent ones, by a server that keeps to the protocol within it."""
    model = record_of(small.initial())
    ask = {"round": f"of step {step}", "step": step, "attempt": 0, "clip_norm": small.CLIP, "grid_bits": 24}
    ask |= {"dimension": 7, "exclude": ["seen"], "metrics": [], "model": digest_of(model)}
    ask |= {"stage": "masked", "shared": False}
    server = SumServer(
        list(places), dimension=7, grid_bits=24, threshold=4, context=context_of(ask), identities=SIGNERS
    )
    while server.stage is not None:
        for client, request in server.requests().items():
            content = RecordDict({"anechoic": ConfigRecord(ask), **records_of(request)})
            if server.stage is Stage.MASKED:
                if client in silent:
                    continue
                content.update({"arrays": model, "config": ConfigRecord({"server-round": 1})})
            sent = grid.push_messages([Message(content, places[client], MessageType.TRAIN)])
            (reply,) = grid.pull_messages(sent)
            assert server.receive(client, fields_of(reply.content)) is None
        server.advance()
    return server.result().vector


def test_two_signed_sums_of_the_same_updates_show_one():
    """What signatures are not for, as the statement says, and why no memory of steps would help: two steps
    with one model, and client 0 left out of the second, are its update. No client sees anything wrong."""
    grid = watched()
    places = dict(zip(range(MANY), grid.get_node_ids(), strict=False))
    found = sum_of(grid, places, step=0) - sum_of(grid, places, step=1, silent=(0,))
    np.testing.assert_array_equal(found, small.vector(small.initial(), 0, 1, 24))


def test_a_client_that_signs_answers_no_other_round():
    for options in ({"signers": None}, {"signers": None, "masked": False}):
        grid = watched()
        _, found = small.run(strategy(patience=0.0, **options), grid, rounds=1)
        assert not grid.stages
        report = found.report()
        if found.seen.masked:
            assert report.released == 0
        else:  # all refuse, which is an answer: noise alone
            assert (report.released, sum(report.refused.values())) == (1, MANY)


def test_a_client_without_signer_takes_no_part_in_signed_rounds():
    grid = watched(ClippedUpdate())
    _, found = small.run(strategy(patience=0.0), grid, rounds=1)
    assert found.report().released == 0 and not grid.stages


def test_clients_that_nobody_knows_are_not_asked():
    few = {client: SIGNERS[client] for client in range(MANY)}
    found = strategy(signers=few, discipline=small.CoolDown(1))
    small.run(found, watched(), rounds=2)
    assert found.report().released == 2 and found.report().ledger.clients == MANY


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"masked": False}, "masked=True"),
        ({"signers": {}}, "map every client"),
        ({"signers": [KNOWN[0]]}, "map every client"),
        ({"signers": {1: KNOWN[0], 2: KNOWN[0]}}, "one key"),
        ({"signers": {1: KNOWN[0][:31]}}, r"signers\[1\].*32 bytes"),
        ({"signers": {1: "key"}}, "32 bytes"),
    ],
)
def test_refuses(options, words):
    with pytest.raises(ValueError, match=words):
        strategy(**options)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ((PRIVATE[0], KNOWN[1:]), "own public key"),
        ((b"short", KNOWN), "private"),
        ((PRIVATE[0], [*KNOWN, b"x"]), "32 bytes"),
    ],
)
def test_a_signer_refuses(arguments, words):
    with pytest.raises(ValueError, match=words):
        Signer(*arguments)
    assert PRIVATE[0].hex() not in repr(Signer(PRIVATE[0], KNOWN)) and str(PRIVATE[0]) not in repr(
        Signer(PRIVATE[0], KNOWN)
    )


def test_a_mod_refuses_a_signer_that_is_no_function():
    with pytest.raises(ValueError, match="function"):
        ClippedUpdate(signer=Signer(PRIVATE[0], KNOWN))
    with pytest.raises(ValueError, match="smallest_threshold"):
        ClippedUpdate(smallest_threshold=1)


# -- files -----------------------------------------------------------------------------------------


def private_file(path, key):
    path.write_bytes(key.private_bytes(Encoding.PEM, PrivateFormat.OpenSSH, NoEncryption()))
    return path


def locked_file(path):
    """A key with a passphrase, as far as it is read without one; to write a whole one takes bcrypt."""
    public = b"".join(len(part).to_bytes(4, "big") + part for part in (b"ssh-ed25519", KNOWN[0]))
    parts = (b"aes256-ctr", b"bcrypt", (16).to_bytes(4, "big") + bytes(16) + (16).to_bytes(4, "big"))
    text = b"".join(len(part).to_bytes(4, "big") + part for part in parts) + (1).to_bytes(4, "big")
    text += b"".join(len(part).to_bytes(4, "big") + part for part in (public, bytes(160)))
    lines = base64.encodebytes(b"openssh-key-v1\0" + text)
    marks = (b"-----BEGIN OPENSSH PRIVATE KEY-----\n", b"-----END OPENSSH PRIVATE KEY-----\n")
    path.write_bytes(marks[0] + lines + marks[1])
    return path


def line_of(key, name=""):
    return (key.public_bytes(Encoding.OpenSSH, PublicFormat.OpenSSH).decode() + f" {name}").strip()


def files(folder):
    """Paths of a private key and of the keys that its node knows, as ssh-keygen writes them."""
    keys = [Ed25519PrivateKey.from_private_bytes(private) for private in PRIVATE]
    known = folder / "known"
    lines = [line_of(key.public_key(), f"node {node}") for node, key in enumerate(keys)]
    known.write_text("\n".join(["# the federation", *lines, ""]))
    return private_file(folder / "own", keys[3]), known


def test_keys_are_read_from_files(tmp_path):
    own, known = files(tmp_path)
    assert read_signers(known) == {f"node {node}": key for node, key in enumerate(KNOWN)}

    class Node:
        node_config = {"signing-key": str(own), "known-signers": str(known)}

    found = Signer.of_node(Node)
    assert found.private == PRIVATE[3] and found.known == frozenset(KNOWN) and found.public == KNOWN[3]
    Node.node_config = {"signing-key": str(own)}
    with pytest.raises(ValueError, match="known-signers"):
        Signer.of_node(Node)


def test_files_of_another_kind_are_refused(tmp_path):
    own, known = files(tmp_path)
    curve = ec.generate_private_key(ec.SECP256R1())
    key = Ed25519PrivateKey.generate()
    cases = {
        "cannot be read": (tmp_path / "missing", known),
        "no OpenSSH private key": (known, known),
        "another kind of key": (private_file(tmp_path / "curve", curve), known),
        "without a passphrase": (locked_file(tmp_path / "locked"), known),
    }
    for words, paths in cases.items():
        with pytest.raises(ValueError, match=words):
            Signer.of_files(*paths)
    for text, words in (
        ("ssh-ed25519 AAAA node", "line 1: no OpenSSH public key"),
        (line_of(curve.public_key()), "line 1: not an ssh-ed25519 key"),
        ("\n".join([line_of(key.public_key(), "twice")] * 2), "line 2: 'twice' stands there twice"),
    ):
        known.write_text(text)
        with pytest.raises(ValueError, match=words):
            Signer.of_files(own, known)


def test_a_key_file_that_is_missing_is_one_silent_client(tmp_path):
    """The others carry the round, and what is missing is in that client's own log."""
    silent = 4

    def of_files(context):
        if context.node_config["partition-id"] == silent:
            return Signer.of_files(tmp_path / "missing", tmp_path / "missing")
        return signer_of(context)

    models, found = small.run(strategy(), watched(ClippedUpdate(signer=of_files)))
    expected = small.models_without_flower(
        answers=lambda client, step: client != silent,
        mechanism=small.mechanism(discipline=small.CoolDown(2), per_round=MANY),
        discipline=small.CoolDown(2),
        clients_per_round=MANY,
        min_replies=2,
    )
    small.same(models, expected)
    assert found.stopped is None
    assert np.isfinite(models[-1]["w"]).all()
