"""A model as a vector, and back: nothing is lost, nothing else gets in."""

import numpy as np
import pytest

from anechoic.federated.flat_parameters import Layout

MODEL = {
    "a": np.arange(6, dtype=np.float32).reshape(2, 3),
    "scale": np.array(2.5),
    "h": np.array([1.5], np.float16),
    "steps": np.array(3),
    "empty": np.zeros((0, 4), np.float32),
}
LAYOUT = Layout.of(MODEL, exclude=["steps"])


def test_there_and_back():
    vector = LAYOUT.flatten(MODEL)
    assert vector.dtype == np.float64 and vector.tolist() == [0, 1, 2, 3, 4, 5, 2.5, 1.5]
    back = LAYOUT.unflatten(vector, like=MODEL)
    assert list(back) == list(MODEL)
    for name, array in MODEL.items():
        assert back[name].dtype == array.dtype and back[name].shape == array.shape
        np.testing.assert_array_equal(back[name], array)
    back["steps"][()] = 4
    assert MODEL["steps"] == 3  # a copy


def test_an_update_needs_no_excluded_arrays_and_any_order():
    update = {name: MODEL[name] for name in ("empty", "h", "scale", "a")}
    np.testing.assert_array_equal(LAYOUT.flatten(update), LAYOUT.flatten(MODEL))


def test_scalars_of_numpy_are_0d_arrays():
    assert LAYOUT.flatten({**MODEL, "scale": np.float64(9)})[6] == 9


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({"a": None}, "'a' is no array"),
        ({"a": MODEL["a"].tolist()}, "'a' is no array"),
        ({"a": np.ma.masked_array(MODEL["a"], mask=True)}, "'a' is no array"),
        ({"a": MODEL["a"].ravel()}, r"shape \(6,\), not \(2, 3\)"),
        ({"a": MODEL["a"].astype(np.float64)}, "dtype <f8, not <f4"),
        ({"a": MODEL["a"].astype(object)}, "dtype |O"),
        ({"a": MODEL["a"].astype(np.complex64)}, "dtype <c8"),
        ({"scale": np.array([2.5])}, r"shape \(1,\), not \(\)"),
        ({"more": np.zeros(1)}, "1 arrays of names"),
    ],
)
def test_other_arrays_are_refused(changed, words):
    with pytest.raises(ValueError, match=words):
        LAYOUT.flatten({**MODEL, **changed})


def test_missing_names_are_refused():
    with pytest.raises(ValueError, match="'scale' is missing"):
        LAYOUT.flatten({name: array for name, array in MODEL.items() if name != "scale"})
    assert LAYOUT.fault([1, 2]) == LAYOUT.fault(None) == "no arrays by name"


@pytest.mark.parametrize(
    ("arrays", "exclude", "words"),
    [
        ({"n": np.array(1)}, (), "dtype int64: only float16"),
        ({"n": np.array(True)}, (), "dtype bool"),
        ({"n": np.array(1j)}, (), "complex"),
        ({"n": np.array([1.0, np.nan])}, (), "'n' has a number that is not finite"),
        ({"n": np.zeros(2)}, ["n"], "no number is left"),
        ({"n": np.zeros(2)}, ["m"], "which the model does not have"),
        ({"n": np.zeros(2)}, "n", "must be a collection"),
        ({"n": np.zeros(2), "o": np.array(None)}, ["o"], "Python objects"),
        ({}, (), "no number is left"),
        ({3: np.zeros(2)}, (), "names must be text"),
    ],
)
def test_models_that_cannot_be_trained_are_refused(arrays, exclude, words):
    with pytest.raises(ValueError, match=words):
        Layout.of(arrays, exclude)
