import gzip
import struct

import numpy as np
import pytest

pytest.importorskip("torch")

from studies.comparison.study import load
from studies.federated.tasks import FashionClients


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    """60 images at 12 clients, of which each uses at most 4."""
    folder, rng = tmp_path_factory.mktemp("images"), np.random.default_rng(0)
    for part, count in (("train", 60), ("t10k", 20)):
        for kind, values in (
            ("images-idx3", rng.integers(0, 256, (count, 28, 28))),
            ("labels-idx1", np.arange(count) % 10),
        ):
            head = struct.pack(f">{1 + values.ndim}I", 0x800 + values.ndim, *values.shape)
            content = gzip.compress(head + values.astype(np.uint8).tobytes())
            (folder / f"{part}-{kind}-ubyte.gz").write_bytes(content)
    return load(FashionClients(str(folder), clients=12, most=4))


def test_a_client_uses_at_most_so_many_images_each_with_the_same_weight(data):
    used = (data.weights > 0).sum(axis=1)
    assert data.clients == 12
    assert used.min() >= 1
    assert used.max() == 4
    assert data.examples == used.sum() < 60
    np.testing.assert_allclose(data.weights.sum(axis=1), 1.0, rtol=1e-6)


def test_a_batch_is_padded_to_its_largest_client_only(data):
    used = (data.weights > 0).sum(axis=1)
    few = np.flatnonzero(used == used.min())
    features, labels, weights = data.batch(few)
    assert features.shape == (len(few), used.min(), 785)
    assert labels.shape == weights.shape == (len(few), used.min())
    assert features.dtype == np.float32
    np.testing.assert_array_equal(features[..., -1], 1.0)
    np.testing.assert_allclose(features[0, 0, :-1] * 255, data.inputs[few[0], 0], rtol=1e-6)


def test_accuracy_counts_the_test_images_that_are_named_right(data):
    weights = np.zeros(data.shape, np.float32)
    weights[-1, 3] = 1.0  # always class 3, of which there are 2 in 20
    assert data.accuracy(weights) == pytest.approx(0.1)
