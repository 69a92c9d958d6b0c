"""A pipeline of Beam: its sums are those of the stream that got the records."""

import pytest

pytest.importorskip("apache_beam")

import apache_beam as beam

from anechoic import streaming
from anechoic.engines.beam import CombineSums, received
from anechoic.participation import MinSep
from tests.streaming.test_accumulator import all_of, columns

RECORDS = [(i % 3, (f"u{i % 17}", 0.01 * i - 0.5, ["a", "b", 7, "other"][i % 4])) for i in range(300)]


def named(pair):
    step, (who, x, kind) = pair
    return step, {"who": who, "x": x, "kind": kind}


@pytest.mark.parametrize("how", [{}, {"participation": MinSep(1, 3), "per_step": 300}])
def test_sums_of_a_pipeline_are_those_of_its_records(tmp_path, how):
    direct, stream, units = all_of(**how), all_of(**how), bool(how)
    combine = CombineSums(stream.accumulator_spec(), "who" if units else None)
    found = tmp_path / "found"
    with beam.Pipeline(runner="DirectRunner") as pipeline:
        sums = pipeline | beam.Create(RECORDS) | beam.Map(named) | beam.CombinePerKey(combine)
        written = sums | beam.Map(lambda pair: f"{pair[0]} {pair[1].hex()}")
        written |= beam.io.WriteToText(str(found))
    lines = [line for path in tmp_path.iterdir() for line in path.read_text().splitlines()]
    pairs = [(int(step), bytes.fromhex(sent)) for step, sent in map(str.split, lines)]
    assert stream.add_sums(received(pairs, stream), batch_id="night")
    for step in range(3):
        batch, ids = columns([record for at, record in RECORDS if at == step])
        direct.update(batch, ids if units else None)
        assert direct.release().to_bytes() == stream.release().to_bytes()
    assert stream.diagnostics() == direct.diagnostics()


def test_records_are_added_some_at_a_time_and_merged():
    stream = all_of()
    combine = CombineSums(stream.accumulator_spec())
    states = [combine.create_accumulator() for _ in range(3)]
    for i, pair in enumerate(RECORDS * 50):
        states[i % 3] = combine.add_input(states[i % 3], named(pair)[1])
    sent = combine.extract_output(combine.merge_accumulators(states))
    (made,) = received([(0, sent)], stream)
    assert made.count == len(RECORDS) * 50 and made.step == 0


def test_an_open_histogram_takes_what_comes_out():
    direct, of = (streaming.OpenHistogram("kind", epsilon=4.0, horizon=3, key=bytes(32)) for _ in range(2))
    combine, found = CombineSums(of.accumulator_spec()), []
    for step in range(3):
        own = [named(pair)[1] for pair in RECORDS if pair[0] == step]
        direct.update({"kind": [record["kind"] for record in own]})
        direct.release()
        parts = [combine.create_accumulator() for _ in range(3)]
        for i, record in enumerate(own):
            parts[i % 3] = combine.add_input(parts[i % 3], record)
        found.append((step, combine.extract_output(combine.merge_accumulators(parts))))
    of.add_sums(received(found, of), batch_id="night")
    of.end_steps([None] * 3)
    assert direct.get().named()
    assert [one.to_bytes() for one in of.releases()] == [one.to_bytes() for one in direct.releases()]
