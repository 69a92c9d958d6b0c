"""Ids and categories as columns of every library: judged by their type, each entry by itself in lists."""

import datetime
import logging
from decimal import Decimal

import numpy as np
import pytest

from anechoic import streaming
from anechoic.engines.frames import accumulated
from anechoic.participation import Single
from anechoic.streaming.columns import kind_of
from anechoic.units import Units
from tests.streaming.test_stream import NoNoise

pl = pytest.importorskip("polars")
pd = pytest.importorskip("pandas")
pa = pytest.importorskip("pyarrow")

NAN = float("nan")
DAYS = [datetime.datetime(2024, 1, day) for day in (1, 2, 3)]


def columns(values):
    """The same values as a column of each library."""
    if type(values[0]) is not Decimal:  # which are objects there
        yield "pandas", pd.Series(values)
    yield "pandas of Arrow", pd.Series(values, dtype=pd.ArrowDtype(pa.array(values, from_pandas=True).type))
    yield "Polars", pl.Series(values, strict=False)
    yield "Arrow", pa.array(values, from_pandas=True)
    yield "chunks of Arrow", pa.chunked_array([values])
    yield "coded Arrow", pa.array(values, from_pandas=True).dictionary_encode()


NO_IDS = [[7.0, NAN, 8.0], [7.5, 7.5, 8.0], [True, False, True], DAYS, [Decimal(7), Decimal(8)]]
IDS = [[7, 8, 8], ["7", "8", "8"], [b"7", b"8", b"8"]]
MORE_IDS = [
    ("pandas Int64", pd.Series([7, None, 8, 8], dtype="Int64")),
    ("pandas object", pd.Series([7, None, 8, 8], dtype=object)),
    ("pandas str", pd.Series(["7", None, "8", "8"])),
    ("pandas category", pd.Series(["7", None, "8", "8"], dtype="category")),
    (
        "pandas of coded Arrow",
        pd.Series(["7", "8", "8"], dtype=pd.ArrowDtype(pa.dictionary(pa.int8(), pa.string()))),
    ),
    ("pandas codes", pd.Series([7, 8, 8], dtype="category")),
    ("Polars", pl.Series([7, None, 8, 8])),
    ("Polars category", pl.Series(["7", None, "8", "8"], dtype=pl.Categorical)),
    ("Polars enum", pl.Series(["float", None, "bool", "bool"], dtype=pl.Enum(["float", "bool"]))),
    ("Polars object", pl.Series([7, 8, 8], dtype=pl.Object)),
    ("Arrow", pa.array([7, None, 8, 8])),
    ("NumPy text", np.array(["7", "8", "8"])),
    ("NumPy StringDType", np.array(["7", "8", "8"], dtype=np.dtypes.StringDType())),
    ("NumPy objects", np.array([7, NAN, 8, 8], dtype=object)),
    ("a list", [7, NAN, 8, 8, 1.5, None]),
]
MORE_NO_IDS = [
    ("pandas Float64", pd.Series([7, None, 8], dtype="Float64")),
    ("pandas float category", pd.Series([7.0, None, 8.0], dtype="category")),
    ("NumPy floats", np.array([7.0, NAN])),
    ("NumPy times", np.array(DAYS, dtype="datetime64[s]")),
    ("other bytes", np.array([7.0, 8.0]).astype(">f8")),
]


def counted(ids, of=lambda: streaming.Count()):
    stream = NoNoise(of(), epsilon=1.0, horizon=4, participation=Single())
    stream.update(len(ids), unit_ids=ids)
    return stream.release().estimate


def test_ids_that_are_none_by_their_type_are_refused_with_the_line():
    given = [*MORE_NO_IDS, *(column for values in NO_IDS for column in columns(values))]
    doors = [
        counted,
        lambda ids: streaming.PartitionSelectionHistogram(epsilon=1.0, horizon=4).update(ids),
        lambda ids: streaming.PartitionSelectionHistogram("c", epsilon=1.0, horizon=4).update({"c": ids}),
    ]
    for _, column in given:
        for door in doors:
            with pytest.raises(ValueError, match=r'astype\("Int64"\).*cast\(pl.Int64\)'):
                door(column)


def test_frames_of_floats_are_refused_as_their_columns():
    stream = streaming.Stream(streaming.Count("v"), epsilon=1.0, horizon=4, participation=Single())
    chosen = streaming.PartitionSelectionHistogram("u", epsilon=1.0, horizon=4)
    frame = {"u": [7.0, None, 8.0], "v": [1, 1, 1]}
    for of in (pl.DataFrame, pl.LazyFrame, pa.table):
        for act in (
            lambda made: accumulated(made, stream, unit="u"),
            lambda made: accumulated(made, chosen),
        ):
            with pytest.raises(ValueError, match="Int64"):
                act(of(frame))
    assert accumulated(pl.DataFrame({**frame, "u": [7, None, 8]}), stream, unit="u")[0].count == 3


def test_ids_of_every_library_count():
    for name, column in (*MORE_IDS, *(column for values in IDS for column in columns(values))):
        assert counted(column) == 2, name
    chosen = streaming.PartitionSelectionHistogram(epsilon=1.0, horizon=4)
    for name, column in (*MORE_IDS, *(column for values in IDS[:2] for column in columns(values))):
        assert chosen.update(column), name
    with pytest.raises(ValueError, match="every record would be left out"):
        chosen.update(np.array([b"7"]))


def test_a_list_in_which_nobody_has_an_id_is_told(caplog):
    with caplog.at_level(logging.WARNING):
        assert counted([7.0, NAN, 8.0]) == 0
        streaming.PartitionSelectionHistogram(epsilon=1.0, horizon=4).update(np.array([7.0, None], object))
    for what in ("an id", "a category"):
        assert f"no record of a batch has {what} that can be read" in caplog.text


def test_categories_of_another_kind_than_their_column_are_refused():
    words, numbers = (lambda: streaming.Histogram(["7", "8"])), (lambda: streaming.Histogram([7, 8]))
    of_numbers = [*columns([7, 8, 8]), *columns([7.0, NAN, 8.0, 8.0]), ("NumPy", np.array([7, 8, 8]))]
    of_words = [*columns(["7", "8", "8"]), ("NumPy", np.array(["7", "8", "8"]))]
    for of, right, wrong in ((words, of_words, of_numbers), (numbers, of_numbers, of_words)):
        for name, column in right:
            stream = NoNoise(of(), epsilon=1.0, horizon=4)
            stream.update(column)
            assert stream.release().named() == {"7": 1, "8": 2}, name
        for _, column in wrong:
            with pytest.raises(ValueError, match=r"every record would be left out.*astype"):
                NoNoise(of(), epsilon=1.0, horizon=4).update(column)
        by = NoNoise(streaming.Count("v"), by=("c", of().categories), epsilon=1.0, horizon=4)
        with pytest.raises(ValueError, match="every record would be left out"):
            by.update({"c": wrong[0][1], "v": [1, 1, 1]})


def test_units_of_training_tell_what_made_their_ids_floats():
    for labels in (
        pd.Series([7, None, 8]),
        pl.Series([7, None, 8]),
        pa.array([7, None, 8]),
        np.array([7, NAN]),
    ):
        with pytest.raises(ValueError, match=r"Int64"):
            Units(labels)
    for large in (np.array([2.0**53]), np.array([2**24], np.float32), pd.Series([1.2e17, 3])):
        with pytest.raises(ValueError, match="too large for it to tell units apart"):
            Units(large)
    assert Units(pd.Series([7.0, 8.0, 8.0])).count == Units(pd.Series([7, 8, 8], dtype="Int64")).count == 2


def test_kinds_of_torch():
    torch = pytest.importorskip("torch")
    assert [kind_of(torch.tensor([1], dtype=kind)) for kind in (torch.int64, torch.float16, torch.bool)] == [
        *"ifb"
    ]
    assert kind_of([1.0]) == kind_of(pd.Series([1, "a"], dtype=object)) == ""
