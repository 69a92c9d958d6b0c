"""The privacy statement in every format: nothing is missing, nothing can be injected, numbers are in full."""

import dataclasses
import json
import math
import re
from functools import cache
from html import unescape
from html.parser import HTMLParser
from pathlib import Path

import pytest

import anechoic as an
from anechoic import cli, streaming
from anechoic.accounting import Verified
from anechoic.participation import MinSep, Single
from anechoic.sampling import (
    BallsInBins,
    CyclicPoisson,
    External,
    FixedOrder,
    FixedSize,
    MinSepSampling,
    Poisson,
    RandomAllocation,
)
from anechoic.selection.repetitions import Repetitions
from anechoic.selection.selection import Selection
from anechoic.statement.formats import FORMATS, SHORTENED, as_signed, as_text
from anechoic.statement.rounding import round_up
from anechoic.statement.statement import LIBRARY, statement_of
from anechoic.strategies import BandedToeplitz, ColumnNormalized, Identity, Tree
from anechoic.streaming.sentences import statement_data
from tests.floats import same_bits

ROOT = Path(__file__).resolve().parents[2]
BANDED = ColumnNormalized(BandedToeplitz(24, [1.0, 0.5, 0.375]))
HOSTILE = 'us<b>er</b> & "co" | [x](javascript:0) *_`~ {unit} \n# no\u00ef\u2014'
QUICK = Verified(samples=20_000, failure=1e-6, seed=3)

MADE = {
    "fixed order": lambda: an.Mechanism(BANDED, FixedOrder(57, 10, steps=24), 3.0),
    "replace one": lambda: an.Mechanism(BANDED, FixedOrder(57, 10, steps=24), 3.0, adjacency="replace_one"),
    "tree": lambda: an.Mechanism(Tree(24), External(MinSep(6), 10, 24), 9.0, unit="client"),
    "poisson": lambda: an.Mechanism(Identity(24), Poisson(100, 10, 24), 3.0, adjacency="add_or_remove"),
    "cyclic poisson": lambda: an.Mechanism(BANDED, CyclicPoisson(1000, 100, 4, 24), 3.0, clip_norm=0.1),
    "users": lambda: an.Mechanism(BANDED, CyclicPoisson(1000, 100, 4, 24), 3.0, unit="user"),
    "no sampling": lambda: an.Mechanism(BANDED, CyclicPoisson(1000, 250, 4, 24), 3.0),
    "fixed size": lambda: an.Mechanism(Identity(24), FixedSize(1000, 100, 24), 2.0),
    "bins": lambda: an.Mechanism(BANDED, BallsInBins(1000, 6, 24), 5.0),
    "bins, verified": lambda: an.Mechanism(
        BANDED, BallsInBins(1000, 6, 24), 5.0, delta=1e-4, accounting=QUICK
    ),
    "min-sep": lambda: an.Mechanism(
        BANDED, MinSepSampling(1000, 100, 4, 24), 5.0, delta=1e-4, accounting=QUICK
    ),
    "allocation": lambda: an.Mechanism(Identity(24), RandomAllocation(1000, 6, 24), 3.0),
    "grid": lambda: an.Mechanism(BANDED, FixedOrder(57, 10, steps=24), 3.0, grid_bits=20),
    "endless": lambda: an.EndlessMechanism(an.strategies.endless.damped(0.01), 3.0, 100, 0.7),
    "endless, hostile": lambda: an.EndlessMechanism(
        an.strategies.endless.damped(0.01), 3.0, 100, unit=HOSTILE, adjacency="replace_one"
    ),
    "hostile": lambda: an.Mechanism(BANDED, FixedOrder(57, 10, steps=24), 3.0, unit=HOSTILE),
}


@cache
def made(name):
    return MADE[name]()


@pytest.fixture(params=MADE)
def mech(request):
    return made(request.param)


def statement(mech):
    return statement_of(mech)


def one_line(text):
    return " ".join(text.split())


class Page(HTMLParser):
    """The text of a page; fails where tags are not balanced, or something comes from elsewhere."""

    VOID = ("meta", "link", "br")

    def __init__(self, html):
        super().__init__(convert_charrefs=True)
        self.open, self.tags, self.words, self.links = [], [], [], []
        self.feed(html)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag, attrs):
        self.tags.append(tag)
        self.links += [value for name, value in attrs if name in ("href", "src")]
        assert not any(name.startswith("on") for name, _ in attrs)
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        self.words.append("" if self.open and self.open[-1] == "style" else data)

    @property
    def text(self):
        return one_line(" ".join(self.words))


def unescaped(markdown):
    return re.sub(r"\\(.)", r"\1", markdown)


class TestEveryFormat:
    @pytest.mark.slow
    def test_everything_is_said(self, mech):
        said = statement(mech)
        shown = {
            "text": one_line(mech.report()),
            "markdown": one_line(unescaped(mech.report("markdown"))),
            "html": Page(mech.report("html")).text,
        }
        for name, text in shown.items():
            for heading, sentence in said.items:
                assert one_line(sentence) in text, f"{heading} in {name}"
                assert heading in text or heading == "Guarantee"
            for sentence in (*said.duties, *said.not_covered, *(each.what for each in said.assumptions)):
                assert one_line(sentence) in text, name
            for proof in said.proofs:
                assert proof.title in text
            for library, version in said.software.items():
                assert f"{library} {version}" in text
            assert mech.fingerprint in text

    @pytest.mark.few(7)
    def test_numbers_are_upper_bounds_and_in_full_in_the_record(self, mech):
        text, record = one_line(mech.report()), json.loads(mech.report("json"))
        printed = float(text.split("(")[1].split(",")[0])
        assert printed >= mech.epsilon() * (1 - 1e-11)
        assert f" {mech.noise_std:.6g} x clip norm" in text
        assert repr(mech.clip_norm) in text and repr(mech.delta) in text
        assert record["guarantee"]["epsilon"] == pytest.approx(mech.epsilon(), rel=1e-9)
        assert record["guarantee"]["delta"] == mech.delta
        assert (record["guarantee"]["mu"], record["guarantee"]["rho"]) == (mech.gdp(), mech.rho())
        assert same_bits(record["noise"]["std"], mech.noise_std)
        assert same_bits(record["noise"]["multiplier"], mech.noise_multiplier)
        assert record["sensitivity"]["value"] == pytest.approx(mech.sensitivity.value, rel=1e-9)
        assert record["fingerprint"] == mech.fingerprint
        assert record["unit"] == mech.unit

    @pytest.mark.few(7)
    def test_json_is_plain(self, mech):
        def refuse(name):
            raise AssertionError(name)

        text = mech.report("json")
        record = json.loads(text, parse_constant=refuse)
        assert json.loads(json.dumps(record)) == record
        assert sorted(record) == sorted(KEYS)
        for key, inner in KEYS.items():
            assert inner is None or sorted(record[key]) == sorted(inner), key

    def test_html_is_one_safe_page(self, mech):
        page = Page(mech.report("html", proofs='https://x.org/"><i>'))
        assert not {"script", "img", "b>", "i", "iframe"} & set(page.tags)
        assert page.tags.count("b") == len(statement(mech).assumptions)
        for link in page.links:
            assert link == "data:," or link.startswith('https://x.org/"><i>/')

    def test_markdown_has_two_tables_of_two_columns(self, mech):
        lines = mech.report("markdown").splitlines()
        tables, said = mech.report("markdown").split("## In detail"), statement(mech)
        for table, count in zip(tables, (len(said.signed) + 1, len(said.items) + 3), strict=True):
            rows = [line for line in table.splitlines() if line.startswith("|")]
            assert len(rows) == count + 2 and "\n".join(rows) in table  # no empty line in it
            for row in rows:
                assert len(re.findall(r"(?<!\\)\|", row)) == 3
        assert [line[3:] for line in lines if line.startswith("## ")] == SECTIONS
        assert [line for line in lines if line.startswith("# ")] == ["# Privacy statement"]

    @pytest.mark.few(8)
    def test_what_was_trained_on_what_is_said_or_left_blank(self, mech):
        named = {"data": "Flights | 2008", "model": "ResNet-18, <11> million parameters"}
        for form, see in (("text", str), ("markdown", unescaped), ("html", lambda page: Page(page).text)):
            blank, filled = one_line(see(mech.report(form))), one_line(see(mech.report(form, **named)))
            assert blank.count("______") == 4 and "______" not in filled, form
            assert all(filled.count(text) == 2 for text in named.values()), form
        said = [json.loads(mech.report("json", **given)) for given in ({}, named)]
        assert [said[0].pop(name) for name in named] == [None, None]
        assert {name: said[1].pop(name) for name in named} == named and said[0] == said[1]
        with pytest.raises(ValueError, match="data=int and model=str must be your words"):
            mech.report(data=3)

    def test_the_same_from_a_file(self, mech):
        if not isinstance(getattr(mech, "sampling", None), (BallsInBins, MinSepSampling)):  # take seconds
            read = type(mech).from_json(mech.to_json())
            assert [read.report(name) for name in FORMATS] == [mech.report(name) for name in FORMATS]


SECTIONS = [
    "In detail",
    "Access to data",
    "Observer",
    "What a deployment must ensure",
    "Not covered",
    "Proofs",
    "Software",
]

#: The keys that docs/reviewer.md promises.
KEYS = {
    "statement": None,
    "unit": None,
    "data": None,
    "model": None,
    "guarantee": ["epsilon", "delta", "profile", "releases", "notion", "mu", "rho", "epsilon_is_amplified"],
    "adjacency": ["name", "meaning"],
    "attacker": ["from", "membership", "rates", "attribute"],
    "accounting": ["method", "confidence", "samples"],
    "batches": ["scheme", "meaning", "divisor", "participation", "max_participations"],
    "strategy": ["name", "steps", "rows"],
    "sensitivity": ["value", "exact", "method", "unit"],
    "arithmetic": ["grid_bits", "sum_excess", "drift"],
    "noise": ["std", "std_unit", "clip_norm", "multiplier", "reference_sensitivity", "reference"],
    "assumptions": None,
    "observer": None,
    "deployment": None,
    "not_covered": None,
    "proofs": None,
    "software": None,
    "fingerprint": None,
}


class TestWhatIsSaid:
    def pages(self, name):
        return [proof.page for proof in statement(made(name)).proofs]

    def test_the_theorems_that_are_used_and_no_others(self):
        assert self.pages("fixed order") == [
            "amplification.md#gaussian-mechanism",
            "sensitivity.md#no-interaction",
            "sensitivity.md#adjacency",
            "noise.md#float-sums",
        ]
        assert self.pages("grid")[-1] == "noise.md#exact-rounding"
        assert self.pages("endless")[-1] == "noise.md#float-sums"
        assert self.pages("tree")[-3:-1] == [
            "sensitivity.md#more-rows-than-steps",
            "sensitivity.md#user-level",
        ]
        assert self.pages("cyclic poisson")[0] == "amplification.md#poisson-sampling"
        assert self.pages("bins")[0] == "amplification.md#balls-in-bins"
        assert "amplification.md#monte-carlo" not in self.pages("bins")
        assert self.pages("bins, verified")[:2] == [
            "amplification.md#balls-in-bins",
            "amplification.md#monte-carlo",
        ]
        assert self.pages("min-sep")[:2] == [
            "amplification.md#minimum-separation",
            "amplification.md#monte-carlo",
        ]
        assert self.pages("allocation")[0] == "amplification.md#random-allocation"
        assert self.pages("endless")[0] == "streams.md#without-a-last-step"

    def test_how_epsilon_was_computed(self):
        def accounting(name):
            return dict(statement(made(name)).items)["Accounting"]

        assert "closed form" in accounting("fixed order")
        assert "closed form" in accounting("no sampling")
        assert re.search(r"both directions.*grid of width 0\.0\d*1 ", accounting("cyclic poisson"))
        assert "fails with probability at most 1e-06" in accounting("bins, verified")
        assert "no sampling error" in accounting("bins")
        record = json.loads(made("bins, verified").report("json"))
        assert record["accounting"]["samples"] == {"samples": 20_000, "failure": 1e-6, "seed": 3}

    def test_who_keeps_which_promise(self):
        for name, who, what in (
            ("fixed order", "the deployment", "the order ignores private values"),
            ("tree", "whoever forms the batches", "at least 6 steps apart"),
            ("bins", "the deployment", "nobody learns which batches one example joined"),
            ("bins", "the library's sampler", "from a secret key"),
            ("users", "the deployment", "what one user adds to one step, as a whole"),
            ("endless", "whoever forms the batches", "at most one step, ever"),
        ):
            said = statement(made(name)).assumptions
            assert any(each.who.startswith(who) and what in each.what for each in said), name

    def test_users_are_sampled_and_their_ownership_is_public(self):
        text = one_line(made("users").report())
        assert "1000 users in 4 groups" in text
        assert "who owns what is fixed and public" in text
        assert "each user's contribution to one step has 2-norm at most 1.0" in text
        assert "example" not in dict(statement(made("users")).items)["Adjacency"]

    def test_versions_are_no_part_of_the_fingerprint(self, monkeypatch):
        before = MADE["fixed order"]().fingerprint
        monkeypatch.setattr("anechoic.statement.software.version_of", lambda name: "0")
        after = MADE["fixed order"]()
        assert after.fingerprint == before
        assert "numpy 0" in after.report()


SIGNED = """\
Guarantee:     (3.098, 1e-06)-differential privacy of all 24 releases together
Privacy unit:  one example of 57
Adjacency:     zero-out: one example's contributions are replaced by zero wherever it takes part
Batches:       fixed order; every noisy sum is divided by 10
Participation: each unit takes part once every 6 steps, always at the same place of the cycle
Noise:         Gaussian, std 3 x clip norm 1.0 before it is correlated
Mechanism:     ColumnNormalized(BandedToeplitz(n=24, bands=3)); sensitivity 2, exact
Accounting:    0.6667-GDP (mu), 0.2223-zCDP (rho); no sampling error
Deployment:    the order ignores private values; one unit per contribution; keys stay secret; only releases,
               and what follows from them, leave; other releases add up; the journal is kept
Not covered:   floating-point attacks; side channels; choosing settings; losses and metrics; broken promises
Fingerprint:   103f495a9f4afed6bbf2b94df2d73a290f3eb1a3ef46e592b928cedd4b2f8ed6; details: report()"""


def stream(**given):
    both = {"n": streaming.Count("x"), "m": streaming.Mean(-5, 9, "x")}
    return statement_data(streaming.Stream(both, epsilon=1.0, horizon=4, **given))


def chosen(**given):
    return statement_data(streaming.PartitionSelectionHistogram(epsilon=1.0, **given))


PATIENTS = Poisson(100, 10, 60)
OTHERS = {
    "composition": lambda: statement_of(an.compose(made("fixed order"), made("cyclic poisson"))),
    "selection": lambda: statement_of(Selection(made("fixed order"), Repetitions(2), None, 1e-5)),
    "weak": lambda: statement_of(dataclasses.replace(made("fixed order"), delta=0.1)),
    "weak, patients": lambda: statement_of(
        an.Mechanism(Identity(60), PATIENTS, 3.0, delta=0.1, unit="patient")
    ),
    "stream": lambda: stream(participation=MinSep(2, 2), per_step=3, unit="person"),
    "stream, few steps": lambda: stream(participation=MinSep(1, 10), per_step=3, unit="person"),
    "stream of records": stream,
    "categories": lambda: chosen(participation=MinSep(1, 10), unit="person"),
    "categories of records": chosen,
}
#: Lines of those that do not fit in twelve.
MOST = dict.fromkeys(("bins, verified", "min-sep", "weak", "weak, patients", "categories", "hostile"), 13)
MOST |= dict.fromkeys(("selection", "endless, hostile", "categories of records"), 13)


def test_a_stream_says_how_often_a_unit_counts():
    assert "one person: each unit takes part in at most 10 steps, 3 records each\n" in as_signed(
        OTHERS["stream, few steps"]()
    )


class TestWhatAReviewerSigns:
    def test_print_shows_twelve_lines(self):
        assert str(made("fixed order")) == SIGNED

    @pytest.mark.parametrize("name", [*MADE, *OTHERS])
    def test_no_duty_is_cut_off(self, name):
        """Twelve lines, and more where there is more to promise; … ends only what nobody has to keep."""
        said = OTHERS[name]() if name in OTHERS else statement(made(name))
        shown = as_signed(said)
        lines = shown.splitlines()
        assert len(lines) <= MOST.get(name, 12) and max(map(len, lines)) <= 110, lines
        cut = {line.partition(":")[0] for line in lines if line.endswith("…")}
        assert cut <= {*SHORTENED}
        kept = [each.what for each in said.assumptions if each.who != LIBRARY]
        for sentence in (*kept, *said.duties, *said.not_covered, said.record["adjacency"]["meaning"]):
            assert one_line(sentence.split(": ")[0]) in one_line(shown)
        assert one_line(dict(said.items)["Privacy unit"].split(". Enforced")[0]) in one_line(shown)
        whole = as_text(said).splitlines()
        assert whole[: len(lines) - 1] == lines[:-1] and whole[len(lines) + 1] == "In detail"

    def test_figures_are_those_of_the_details(self, mech):
        """Every number that a reviewer signs stands in the details too."""
        signed, details = str(mech), mech.report().split("In detail")[1]
        numbers = set(re.findall(r"\d[\d.e+-]*", signed.split("Fingerprint")[0]))
        assert numbers <= set(re.findall(r"\d[\d.e+-]*", details))

    @pytest.mark.parametrize(
        ("name", "said"),
        [
            ("cyclic poisson", "amplified by secret batches; no sampling error"),
            ("cyclic poisson", "sensitivity 2.44949 (unamplified), exact"),
            ("cyclic poisson", "batches stay secret"),
            ("bins, verified", "the bound fails with probability at most 1e-06, a part of delta"),
            ("tree", "participation is as promised"),
            ("users", "clipped by unit"),
            ("users", "one user of 1000"),
            ("poisson", "only releases, and what follows from them, leave"),
            ("endless", "however many there are"),
        ],
    )
    def test_what_each_kind_says(self, name, said):
        assert said in one_line(str(made(name)))

    def test_a_composition_says_that_bounds_may_fail(self):
        both = an.compose(made("bins, verified"), times=2)
        assert "the bounds fail with probability at most" in one_line(str(both))


class TestFiles:
    def test_unknown_formats_are_refused(self):
        with pytest.raises(ValueError, match="format='pdf'"):
            made("fixed order").report("pdf")

    @pytest.mark.parametrize("name", ["fixed order", "endless"])
    def test_explain_in_every_format(self, capsys, tmp_path, name):
        mech, file = made(name), tmp_path / "mechanism.json"
        file.write_text(mech.to_json())
        for form in FORMATS:
            assert cli.main(["explain", str(file), "--format", form]) == 0
            assert capsys.readouterr().out == mech.report(form).rstrip("\n") + "\n"
            assert cli.main(["explain", str(file), "--format", form, "--data", "A", "--model", "B"]) == 0
            assert capsys.readouterr().out == mech.report(form, data="A", model="B").rstrip("\n") + "\n"
            out = tmp_path / f"statement.{form}"
            assert cli.main(["explain", str(file), "--format", form, "--out", str(out), "--proofs", "p"]) == 0
            assert capsys.readouterr().out.startswith(f"Saved: {out} (links to proofs lead to p; --proofs")
            assert out.read_text().rstrip("\n") == mech.report(form, proofs="p").rstrip("\n")


def test_the_page_shows_the_statement_of_its_own_example(capsys):
    """docs/reviewer.md: the code block is run, and what it prints is what follows."""
    page = (ROOT / "docs" / "reviewer.md").read_text(encoding="utf-8")
    ((block, shown),) = re.findall(r"```python\n(.*?)```\n\n```text\n(.*?)```", page, flags=re.DOTALL)
    exec(block, {})
    assert capsys.readouterr().out == shown
    for key, inner in KEYS.items():
        for name in [key, *(inner or ())]:
            assert f"`{name}`" in page, name


@pytest.mark.parametrize(
    ("value", "text"),
    [(0.0, "0.0"), (1.0, "1.000"), (0.99991, "1.000"), (123456.0, "123500"), (1e-7, "0.0000001000")],
)
def test_rounding_up(value, text):
    assert float(round_up(value)) == float(text) >= value


def test_what_is_not_finite_is_null():
    from anechoic.statement.formats import _finite

    assert _finite({"a": [math.inf, 1.5], "b": math.nan}) == {"a": [None, 1.5], "b": None}


class TestArithmetic:
    def test_exact_sums_are_covered_and_float_sums_are_bounded(self):
        sampling = an.sampling.FixedOrder(examples=4096, batch_size=256, steps=16)
        made = an.Mechanism(Identity(16), sampling, 2.0)
        text, record = made.report(), json.loads(made.report("json"))["arithmetic"]
        assert "floating-point attacks" in text and "1 + 0.0078" in " ".join(text.split())
        assert record == {"grid_bits": None, "sum_excess": pytest.approx(0.0078136, rel=1e-3), "drift": 0.0}
        exact = dataclasses.replace(made, grid_bits=24)
        text, record = exact.report(), json.loads(exact.report("json"))["arithmetic"]
        assert "floating-point attacks" not in text and "2^-24" in text and "noise.md#exact-rounding" in text
        assert "#float-sums" not in text
        assert record == {"grid_bits": 24, "sum_excess": 0.0, "drift": 0.0}
        assert exact.fingerprint != made.fingerprint and exact.epsilon() == pytest.approx(
            made.epsilon(), rel=1e-9
        )
        assert an.Mechanism.from_json(exact.to_json()) == exact
        assert "grid_bits" not in json.loads(made.to_json())

    @pytest.mark.parametrize("name", MADE)
    def test_the_observer_and_the_exclusions_agree(self, name):
        """What the observer cannot do is said of the observer alone; nothing that is checked is excluded."""
        said = statement(made(name))
        observer, excluded = dict(said.pairs)["Observer"], " ".join(said.not_covered)
        assert "cannot tell AES-256" in observer and "AES-256" not in excluded
        assert "all data but the unit's" in observer
        exact = getattr(made(name), "grid_bits", None) is not None
        assert ("floating-point" in excluded) == (not exact)
        assert exact or re.search(r"at most 1 \+ [0-9.]+ clip norms", excluded)
        assert "journal" in " ".join(said.duties) and "journal" not in excluded

    def test_more_contributions_than_float32_can_add_have_no_bound(self):
        endless = an.EndlessMechanism(an.strategies.endless.damped(0.01), 3.0, 2**24)
        assert "nothing bounds how far a float32 sum moves" in one_line(endless.report())
        assert json.loads(endless.report("json"))["arithmetic"]["sum_excess"] is None

    def test_a_composition_is_exact_where_all_parts_are(self):
        sampling = an.sampling.FixedOrder(examples=4096, batch_size=256, steps=16)
        floats = an.Mechanism(Identity(16), sampling, 2.0)
        exact = dataclasses.replace(floats, grid_bits=24)
        both = one_line(an.compose(exact, floats).report())
        assert "1 + 0.0078" in both and "2^-24" in both and "floating-point attacks" in both
        assert "floating-point" not in one_line(an.compose(exact, times=3).report())

    @pytest.mark.slow
    def test_memory_that_drifts_is_paid_for(self):
        sampling = an.sampling.BallsInBins(80, 4, 8)
        made = an.calibrate(
            an.strategies.BLT(8, [0.2], [0.9]), sampling=sampling, epsilon=1, delta=1e-6, grid_bits=24
        )
        plain = dataclasses.replace(made, grid_bits=None)
        assert made.drift == 2.0**-39 and plain.drift == 0
        assert plain.epsilon() + 2.0**-33 <= made.epsilon() <= 1
        assert made.gdp() == pytest.approx(plain.gdp() + 2.0**-39, rel=1e-9)
        assert "what its memory loses" in made.report()


@pytest.mark.parametrize(
    ("delta", "signed", "details"),
    [
        (
            0.5,
            "record, drawn at random, would keep",
            "at least 1/N for N=1000 examples: publishing one of them",
        ),
        (1e-3, "record, drawn at random, would keep", "at least 1/N for N=1000 examples"),
        (9.99e-4, "drawn at random, with probability 0.99 would keep", "0.99 times 1/N for N=1000 examples"),
        (1.01e-4, "drawn at random, with probability 0.1 would keep", "0.1 times 1/N for N=1000 examples"),
        (9.9e-5, "", ""),
    ],
)
def test_a_delta_that_publishing_a_record_would_satisfy_is_named(delta, signed, details):
    mech = an.Mechanism(Identity(2), FixedOrder(1000, 500, steps=2), 3.0, delta=delta)
    shown = str(mech)
    assert signed in shown and ("publishing" in shown) == bool(signed) and "example of 1000" in shown
    assert details in one_line(mech.report())
    for other in (an.compose(mech, times=2), Selection(mech, Repetitions(2), None, delta)):
        assert signed in str(other) and "example of 1000" in str(other)
    unknown = an.Mechanism(Identity(2), External(Single(), 5, steps=2), 3.0, delta=delta)
    assert ("is at least 1/2" in " ".join(unknown.report().split())) == (delta >= 0.5)


def test_a_statement_about_sums_needs_no_model():
    mech = an.Mechanism(Identity(2), External(Single(), 5, steps=2), 3.0)
    said = " ".join(mech.report().split())
    assert "released models" not in said and "every noisy sum and all that is computed from them" in said


def test_a_notebook_shows_the_statement_and_takes_no_html_from_it(mech):
    shown, said = mech._repr_html_(), statement_of(mech)
    for _, text in said.pairs:
        assert text in unescape(shown)
    assert set(re.findall(r"<([a-z]+)", shown)) <= {
        *"pb",
        "div",
        "style",
        "dl",
        "dt",
        "dd",
        "details",
        "summary",
    }
    assert len(shown) < 20_000
