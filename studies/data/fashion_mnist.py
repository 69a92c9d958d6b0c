"""Fashion-MNIST from its four original files (gzip-compressed IDX)."""

from __future__ import annotations

import gzip
import math
import os
import zlib
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

_FILES = (
    "train-images-idx3-ubyte.gz",
    "train-labels-idx1-ubyte.gz",
    "t10k-images-idx3-ubyte.gz",
    "t10k-labels-idx1-ubyte.gz",
)
_IMAGES_MAGIC = 0x00000803  # unsigned bytes, three axes
_LABELS_MAGIC = 0x00000801  # unsigned bytes, one axis
_CLASSES = 10
_REMEDY = "Replace it by the original file of Fashion-MNIST."


def fashion_mnist(
    directory: str | os.PathLike[str],
) -> tuple[NDArray[np.float32], NDArray[np.int64], NDArray[np.float32], NDArray[np.int64]]:
    """Training and test set of Fashion-MNIST, read from `directory`.

    Any data set in the same four files can be read, MNIST for one.

    Args:
        directory: folder with `train-images-idx3-ubyte.gz`, `train-labels-idx1-ubyte.gz`,
            `t10k-images-idx3-ubyte.gz` and `t10k-labels-idx1-ubyte.gz`.

    Returns:
        `(train_images, train_labels, test_images, test_labels)`: images float32 in [0, 1] of
        shape (count, 28, 28), labels int64 from 0 to 9 of shape (count,).

    Raises:
        FileNotFoundError: the folder, or one of the four files, is not there.
        ValueError: a file is not gzip, has another magic number, is truncated or too long, or
            images and labels do not match.
    """
    folder = Path(directory)
    paths = [folder / name for name in _FILES]
    missing = [path.name for path in paths if not path.is_file()]
    if missing:
        raise FileNotFoundError(
            f"directory={str(folder)!r} lacks {', '.join(missing)}: Fashion-MNIST is read from its four "
            f"original files. Put them there (Debian's package dataset-fashion-mnist installs them), "
            f"or name the folder that has them."
        )
    train_images, train_labels = _pair(paths[0], paths[1])
    test_images, test_labels = _pair(paths[2], paths[3])
    return train_images, train_labels, test_images, test_labels


def _pair(images_path: Path, labels_path: Path) -> tuple[NDArray[np.float32], NDArray[np.int64]]:
    images = _read_idx(images_path, _IMAGES_MAGIC)
    labels = _read_idx(labels_path, _LABELS_MAGIC)
    if len(images) != len(labels):
        raise ValueError(
            f"{images_path.name} has {len(images)} images and {labels_path.name} has {len(labels)} labels; "
            f"there must be one label per image. Take both files from the same data set."
        )
    if labels.size and labels.max() >= _CLASSES:
        raise ValueError(
            f"{labels_path.name} has the label {labels.max()}; labels run from 0 to {_CLASSES - 1}. {_REMEDY}"
        )
    pixels = images.astype(np.float32)
    pixels /= np.float32(255.0)
    return pixels, labels.astype(np.int64)


def _read_idx(path: Path, magic: int) -> NDArray[np.uint8]:
    """The array in one IDX file: a big-endian header (magic, one length per axis), then bytes."""
    try:
        content = gzip.decompress(path.read_bytes())
    except EOFError as error:
        raise ValueError(f"{path} ends before its gzip stream does: it is truncated. {_REMEDY}") from error
    except (gzip.BadGzipFile, zlib.error) as error:
        raise ValueError(
            f"{path} is not a valid gzip file ({error}); IDX files are gzip. {_REMEDY}"
        ) from error

    axes = magic & 0xFF
    header_bytes = 4 * (1 + axes)
    if len(content) < 4 or (found := int.from_bytes(content[:4], "big")) != magic:
        shown = f"0x{found:08x}" if len(content) >= 4 else f"{len(content)} bytes in all"
        raise ValueError(f"{path} starts with {shown}; its magic number must be 0x{magic:08x}. {_REMEDY}")
    if len(content) < header_bytes:
        raise ValueError(
            f"{path} holds {len(content)} bytes; its header alone needs {header_bytes}: "
            f"it is truncated. {_REMEDY}"
        )
    shape = tuple(int(length) for length in np.frombuffer(content, dtype=">u4", count=axes, offset=4))
    body, needed = len(content) - header_bytes, math.prod(shape)
    if body != needed:
        fault = "it is truncated" if body < needed else "it has left-over bytes"
        raise ValueError(
            f"{path} holds {body} bytes after its header; shape {shape} needs {needed}: {fault}. {_REMEDY}"
        )
    return np.frombuffer(content, dtype=np.uint8, offset=header_bytes).reshape(shape)
