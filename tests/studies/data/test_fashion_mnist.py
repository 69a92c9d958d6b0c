"""The IDX reader: what it reads, and each way a file can be wrong."""

import gzip
import struct
from functools import partial

import numpy as np
import pytest

from studies.data.fashion_mnist import fashion_mnist

# without a time stamp: names of tests must not depend on the second in which they are collected
compress = partial(gzip.compress, mtime=0)

TRAIN_IMAGES = "train-images-idx3-ubyte.gz"
TRAIN_LABELS = "train-labels-idx1-ubyte.gz"
TEST_IMAGES = "t10k-images-idx3-ubyte.gz"
TEST_LABELS = "t10k-labels-idx1-ubyte.gz"


def idx(array, magic=None):
    """`array` as the bytes of an IDX file, before compression."""
    magic = 0x800 + array.ndim if magic is None else magic
    return struct.pack(f">{1 + array.ndim}I", magic, *array.shape) + array.astype(np.uint8).tobytes()


@pytest.fixture
def folder(tmp_path):
    rng = np.random.default_rng(5)
    for images, labels, count in ((TRAIN_IMAGES, TRAIN_LABELS, 7), (TEST_IMAGES, TEST_LABELS, 3)):
        pixels = rng.integers(0, 256, size=(count, 28, 28))
        pixels[0, 0, :2] = 0, 255
        (tmp_path / images).write_bytes(compress(idx(pixels)))
        (tmp_path / labels).write_bytes(compress(idx(np.arange(count) % 10)))
    return tmp_path


def test_reads_what_was_written(folder):
    train_images, train_labels, test_images, test_labels = fashion_mnist(folder)
    assert train_images.shape == (7, 28, 28) and test_images.shape == (3, 28, 28)
    assert train_images.dtype == test_images.dtype == np.float32
    assert train_labels.dtype == test_labels.dtype == np.int64
    assert train_labels.tolist() == list(range(7)) and test_labels.tolist() == list(range(3))
    assert train_images.min() == 0.0 and train_images.max() == 1.0
    written = np.random.default_rng(5).integers(0, 256, size=(7, 28, 28))
    np.testing.assert_allclose(train_images[1:] * 255, written[1:], rtol=1e-6)


def test_missing_file_is_named(folder):
    (folder / TEST_LABELS).unlink()
    with pytest.raises(FileNotFoundError, match=f"lacks {TEST_LABELS}.*dataset-fashion-mnist"):
        fashion_mnist(folder)


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        (TRAIN_IMAGES, compress(idx(np.zeros((7, 28, 28)), magic=0x803)[:-1]), "needs 5488: it is truncated"),
        (TRAIN_IMAGES, compress(idx(np.zeros((7, 28, 28))) + b"x"), "left-over bytes"),
        (
            TRAIN_IMAGES,
            compress(idx(np.zeros(7))),
            "starts with 0x00000801; its magic number must be 0x00000803",
        ),
        (TRAIN_LABELS, compress(b""), "starts with 0 bytes in all"),
        (TRAIN_IMAGES, compress(idx(np.ones((7, 28, 28))))[:40], "ends before its gzip stream does"),
        (TRAIN_IMAGES, b"<html>not found</html>", "not a valid gzip file"),
        (TRAIN_LABELS, compress(idx(np.zeros(6))), "7 images and .* has 6 labels"),
        (TRAIN_LABELS, compress(idx(np.full(7, 10))), "has the label 10; labels run from 0 to 9"),
    ],
)
def test_damaged_file_is_refused(folder, name, content, message):
    (folder / name).write_bytes(content)
    with pytest.raises(ValueError, match=message) as caught:
        fashion_mnist(folder)
    assert name in str(caught.value)
