"""The state directory: what is on disk goes on bit for bit, and what could use noise twice is refused."""

import stat

import numpy as np
import pytest

from anechoic import federated
from anechoic.errors import CheckpointError, MismatchError
from anechoic.strategies import BandedToeplitz
from tests.federated.small import KEY, run_round, small_mechanism, small_model, small_server, update_of


@pytest.fixture(autouse=True)
def frequent_snapshots(monkeypatch):
    monkeypatch.setattr("anechoic.federated.store.RunStore.rows_between", lambda *_: 2)


OPTIMIZERS = [federated.SGD(0.5), federated.SGD(0.5, momentum=0.9), federated.FedAdam(lambda t: 1 / (1 + t))]


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_opened_again_before_every_call_it_goes_on_bit_for_bit(tmp_path, optimizer):
    through = small_server(optimizer=optimizer)
    state = tmp_path / "run"
    for step in range(6):
        asked, closed = run_round(through, range(20), step % 3, refused=1)
        with small_server(state=state, optimizer=optimizer) as server:
            first = server.ask(range(20))
            assert first.clients == asked.clients and not first.resumed
            first.add(first.clients[0], update_of(first.clients[0], step))  # is lost with the process
        with small_server(state=state, optimizer=optimizer) as server:
            again = server.ask([])  # whoever is there now
            assert again.resumed and again.clients == asked.clients and again.config == asked.config
            for client in again.clients[step % 3 :]:
                assert again.add(client, update_of(client, step)) is None
            assert again.add("nobody", None) is not None
            found = server.close(again)
            np.testing.assert_array_equal(found.update, closed.update)
            for name, array in closed.model.items():
                np.testing.assert_array_equal(found.model[name], array)
                np.testing.assert_array_equal(again.model[name], asked.model[name])
    with small_server(state=state, optimizer=optimizer) as server:
        assert server.report() == through.report()
        for name, array in through.model.items():
            np.testing.assert_array_equal(server.model[name], array)
            assert server.model[name].dtype == array.dtype


def test_a_plan_made_again_with_other_digits_goes_on_with_the_mechanism_of_the_run(tmp_path):
    policy = federated.MinSeparation(3, 3)
    begun = small_mechanism(policy, 3)
    strategy = BandedToeplitz(begun.steps, np.array([1.0, 0.50001, 0.25]))
    through = small_server(policy, mechanism=begun)
    for plan in (begun, small_mechanism(policy, 3, strategy=strategy)):
        _, closed = run_round(through, range(20))
        with small_server(policy, mechanism=plan, state=tmp_path / "run") as server:
            assert server.mechanism == begun
            np.testing.assert_array_equal(run_round(server, range(20))[1].update, closed.update)


def test_participations_are_not_forgotten_and_short_rounds_count(tmp_path):
    state = tmp_path / "run"
    with small_server(state=state, min_replies=2) as server:
        asked = server.ask(range(4))
        assert not server.close(asked).released
        run_round(server, asked.clients)
    with small_server(state=state, min_replies=2) as server:
        with pytest.raises(federated.TooFewClients) as caught:
            server.ask(range(4))
        assert caught.value.allowed == 1
        assert server.report().short == 1
    with small_server(state=state) as server:
        assert set(server.ask(range(4)).clients).isdisjoint(asked.clients)


@pytest.mark.parametrize("client", [7, -7, 10**40, "7", "\ud800", "", b"7", b"\0\xff", np.int64(7)])
def test_ids_of_every_kind_come_back(tmp_path, client):
    with small_server(state=tmp_path / "run") as server:
        assert server.ask([client]).clients == (client,)
    with small_server(state=tmp_path / "run") as server:
        again = server.ask([])
        assert again.clients == (client,) and type(again.clients[0]) in (int, str, bytes)
        assert again.add(client, update_of(1, 0)) is None


def test_it_is_the_owners_alone(tmp_path):
    with small_server(state=tmp_path / "run") as server:
        run_round(server, range(9))
    modes = {stat.S_IMODE(path.stat().st_mode) for path in (tmp_path / "run").iterdir()}
    assert modes == {0o600} and stat.S_IMODE((tmp_path / "run").stat().st_mode) == 0o700


def test_a_key_that_is_given_is_not_written(tmp_path):
    with small_server(state=tmp_path / "run", key=lambda: KEY) as server:
        run_round(server, range(9))
    assert not any(KEY in path.read_bytes() for path in (tmp_path / "run").iterdir())
    with pytest.raises(MismatchError, match="does not hold its key"):
        small_server(state=tmp_path / "run", key=None)
    with pytest.raises(MismatchError, match="another key"):
        small_server(state=tmp_path / "run", key=bytes(32))


OTHER_MODEL = {**small_model(), "b": np.array([0.5])}


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"optimizer": federated.SGD(0.5)}, "optimizer.lr"),
        ({"optimizer": federated.FedAdam()}, ".*optimizer.kind.*"),
        ({"setting": {"identity": "Partitions"}}, "setting.*"),
        (
            {"mechanism": small_mechanism(federated.MinSeparation(3, 3), 3, epsilon=3.0)},
            r"mechanism.fingerprint, mechanism.noise_std \(was .*\)",
        ),
    ],
)
def test_another_run_is_refused(tmp_path, options, words):
    small_server(state=tmp_path / "run").shut()
    with pytest.raises(MismatchError, match=f"another federated run: {words} differ"):
        small_server(state=tmp_path / "run", **options)


def test_another_model_or_policy_is_refused(tmp_path):
    small_server(state=tmp_path / "run").shut()
    policy = federated.MinSeparation(3, 3)
    with pytest.raises(MismatchError, match="layout differ"):
        federated.Server(
            OTHER_MODEL,
            mechanism=small_mechanism(policy, 3),
            policy=policy,
            clients_per_round=3,
            exclude=["seen"],
            state=tmp_path / "run",
            key=KEY,
        )
    with pytest.raises(MismatchError, match="mechanism.fingerprint.*, policy.* differ"):
        small_server(federated.Cohorts(3), state=tmp_path / "run")


def damaged_files(state):
    return sorted(path for path in state.iterdir() if path.suffix == ".bin")


@pytest.mark.parametrize("kind", ["model", "noise"])
@pytest.mark.parametrize("how", ["gone", "cut", "flipped", "other"])
def test_vectors_that_are_damaged_are_refused(tmp_path, kind, how):
    state = tmp_path / "run"
    with small_server(state=state) as server:
        for _ in range(2):
            run_round(server, range(20))
        before = {path.name.split("-")[0]: path.read_bytes() for path in damaged_files(state)}
        for _ in range(2):
            run_round(server, range(20))
    (target,) = [path for path in damaged_files(state) if path.name.startswith(kind)]
    content = target.read_bytes()
    if how == "gone":
        target.unlink()
    else:
        flipped = content[:-3] + bytes([content[-3] ^ 1]) + content[-2:]
        target.write_bytes({"cut": content[:-8], "flipped": flipped, "other": before[kind]}[how])
    with pytest.raises(CheckpointError, match="Put the file back"):
        small_server(state=state)
    target.write_bytes(content)
    small_server(state=state).shut()


def test_a_state_that_cannot_be_a_directory_is_refused(tmp_path):
    file = tmp_path / "file"
    file.write_text("something")
    for state, words in (
        (file, "file is a file: give a directory"),
        (tmp_path / "missing" / "run", "missing, which is no folder"),
        (file / "run", "file, which is no folder"),
        (7, "state=7 must be the path"),
    ):
        with pytest.raises(ValueError, match=words):
            small_server(state=state)
    assert file.read_text() == "something" and list(tmp_path.iterdir()) == [file]


def test_files_of_others_in_the_directory_stay(tmp_path):
    state = tmp_path / "run"
    state.mkdir()
    (state / "notes.txt").write_text("mine")
    (state / ".model-3-0123456789abcdef.bin.partial").write_text("cut short")
    with small_server(state=state) as server:
        run_round(server, range(9))
    left = {path.name.split("-")[0] for path in state.iterdir()}
    assert left == {"notes.txt", "state.db", "state.db.lock", "model"}
    assert not (state / ".model-3-0123456789abcdef.bin.partial").exists()
