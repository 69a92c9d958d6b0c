"""docs/speed.md says what its record says, and its picture is that of the record."""

import json

import pytest

from tests.rules.pages import ROOT, text_of

RECORD = ROOT / "benchmarks" / "records" / "training_step.json"


def short(value):
    return f"{value:.2f}".removeprefix("0")


def test_the_figures_of_the_page():
    figures, page = json.loads(RECORD.read_text("utf-8")), " ".join(text_of("docs/speed.md").split())
    ratios = {(r["network"], r["batch_size"], r["mode"]): r["processor_ratio"] for r in figures["results"]}
    exact = {
        size: sorted(v for (_, b, mode), v in ratios.items() if mode == "rows+exact" and b == size)
        for size in (256, 32)
    }
    hooks = [1e3 * r["processor_seconds"]["independent"] for r in figures["results"] if r["mode"] != "ghost"]
    faq = " ".join(text_of("docs/faq.md").split())
    for mode, before, where in (
        ("rows+exact", "By default a step takes ", (page, faq)),
        ("rows", "Without exact sums they took ", (page,)),
        ("rows", "Without exact sums it takes ", (faq,)),
        ("ghost", "with ghost clipping ", (page,)),
    ):
        took = [ratio for (_, _, one), ratio in ratios.items() if one == mode]
        assert all(f"{before}{short(min(took))} to {short(max(took))}" in text for text in where)
    assert f"batches of 256 took {short(exact[256][0])} to {short(exact[256][-1])} times" in page
    assert f"batches of 32 took {short(exact[32][0])} to {short(exact[32][-1])}." in page
    assert f"{min(hooks):.0f} to {max(hooks):,.0f} ms" in page
    first, last = figures["setting"]["load"]
    assert f"(load {first:.1f} at the beginning, {last:.1f} at the end)" in page


@pytest.mark.slow
def test_the_picture_is_drawn_from_the_record(tmp_path, monkeypatch):
    pytest.importorskip("opacus")
    pytest.importorskip("matplotlib")
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    from training_step import main

    main(["--read", str(RECORD), "--plot", str(tmp_path / "speed.svg")])
    drawn, kept = (tmp_path / "speed.svg").read_text(), text_of("docs/images/speed.svg")
    assert drawn == kept
