"""What a file that is put back, or opened again, costs: another release with noise of its own."""

import numpy as np
import pytest

import anechoic as an
from anechoic import streaming
from anechoic.keys import derive
from anechoic.mechanism.rows import NoiseRows
from anechoic.participation import Single
from anechoic.sampling import External

KEY = bytes(range(32))
SIZE, STEPS = 200, 12
STRATEGIES = {
    "banded": an.strategies.BandedToeplitz(STEPS, [1.0, 0.5, 0.25]),
    "blt": an.optimize.blt(an.workloads.prefix_sum(STEPS), buffers=2).strategy,
    "dense": an.optimize.dense(an.workloads.prefix_sum(STEPS)).strategy,
}

pytestmark = pytest.mark.usefixtures("salted")


def stream_at(path, strategy="banded", **options):
    promise = {"sampling": External(Single(), 1, steps=STEPS), "epsilon": 1.0, "delta": 1e-6}
    mechanism = an.calibrate(STRATEGIES[strategy], **promise, grid_bits=28)
    return streaming.Stream(streaming.Histogram(range(SIZE)), mechanism=mechanism, state=path, **options)


def noise_of(stream, step, fed):
    """The row less what was fed, in standard deviations."""
    unit = stream.shared.units["histogram"]
    exact = np.bincount(fed, minlength=SIZE) * unit
    return (stream._row(step) - exact) / (stream.mechanism.noise_std * 2.0**28)


@pytest.mark.parametrize("key", [None, KEY])
@pytest.mark.parametrize("strategy", STRATEGIES)
def test_an_older_file_put_back_does_not_repeat_noise(tmp_path, key, strategy):
    path, found = tmp_path / "s", []
    with stream_at(path, strategy, key=key) as stream:
        stream.steps([[1, 2]] * 3)
    older = path.read_bytes()
    for fed in ([5, 6, 7], [5, 6]):  # one record is not there the second time
        path.write_bytes(older)
        with stream_at(path, strategy, key=key) as stream:
            stream.steps([fed, fed])
            found.append([noise_of(stream, step, fed) for step in (3, 4)])
    for one, other in zip(*found, strict=True):
        # were it the same noise, all of these were zero: 200 numbers, each within 2 % of zero by chance 1 %
        assert np.std(one - other) > 0.3 and np.mean(np.abs(one - other) < 0.02) < 0.2


@pytest.mark.parametrize("options", [{}, {"over": streaming.SlidingWindow(3)}])
def test_streams_in_memory_with_one_key_share_no_noise(options):
    made = [
        streaming.Stream(streaming.Histogram(range(SIZE)), key=KEY, epsilon=1.0, horizon=9, **options)
        for _ in range(2)
    ]
    one, other = (stream.steps([[3]] * 2)[-1].only.raw for stream in made)
    assert np.mean(one == other) < 0.1 and np.std(one - other) > 1


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_over_many_openings_every_row_is_the_exact_sum_with_the_noise_of_its_opening(tmp_path, strategy):
    """Exact rounding reads earlier fresh rows again, each with the salt that it was drawn with."""
    path = tmp_path / "s"
    for group in ([1], [0, 0], [], [], [2] * 4, [1]):  # some openings release nothing
        with stream_at(path, strategy, key=KEY) as stream:
            stream.steps([[fed] for fed in group])
    with stream_at(path, strategy, key=KEY) as stream:
        openings = stream._state.openings
        assert [first for first, _ in openings] == [0, 1, 3, 7, 8] and len(set(openings)) == 5
        secret = derive(KEY, f"streaming noise {stream._identity()}", size=32)
        noise = NoiseRows(stream.mechanism, SIZE, secret, openings)
        unit = stream.shared.units["histogram"]
        for step, fed in enumerate([1, 0, 0, 2, 2, 2, 2, 1]):
            exact = np.bincount([fed], minlength=SIZE) * unit
            np.testing.assert_array_equal(stream._row(step) - exact, noise.next())


def test_what_a_process_drew_and_lost_is_not_drawn_again(tmp_path):
    """It was ended between the commit of its opening and that of its first release, as by kill -9."""
    path, drawn = tmp_path / "s", []
    stream_at(path, key=KEY).close()
    for _ in range(2):
        with stream_at(path, key=KEY) as stream:
            drawn.append(stream._noise.next())
    assert (drawn[0] != drawn[1]).mean() > 0.99


def test_the_salt_is_on_disk_before_noise_is_drawn(tmp_path, monkeypatch):
    path = tmp_path / "s"
    stream_at(path, key=KEY).close()
    before = path.read_bytes()

    def full(*_):
        raise OSError("disk full")

    with monkeypatch.context() as patch:
        patch.setattr(streaming.store.Store, "_begin_opening", full)
        with pytest.raises(OSError, match="disk full"):
            stream_at(path, key=KEY)
    assert before == path.read_bytes()
    with stream_at(path, key=KEY) as stream:
        assert stream.step == 0
