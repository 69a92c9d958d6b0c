"""Audits of an observed run, or of a noise stream, against what its mechanism claims."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from anechoic._validate import Array, fraction, positive_int
from anechoic.audit.bounds import LowerBound, bounds_by_ranks, mu_by_fit, mu_by_threshold
from anechoic.audit.covariance import covariance_test
from anechoic.audit.draws import draw_test
from anechoic.audit.observation import Observation, canary_scores
from anechoic.audit.participation_law import law_of
from anechoic.audit.patterns import strongest_pattern
from anechoic.audit.power import canaries_needed, fit_power, scale_power
from anechoic.audit.ratios import likelihood_ratios
from anechoic.audit.report import AuditReport, Finding
from anechoic.mechanism.mechanism import Mechanism

#: Tests that share the probability of a false alarm; the one of the sampling law comes on top.
_TESTS = 5
_DELTAS = (0.001, 0.003, 0.01, 0.03, 0.1, 0.3)


def audit(
    mechanism: Mechanism,
    observation: Observation,
    *,
    confidence: float = 0.95,
    delta: float | None = None,
    factor: float = 1.2,
    subject: str = "",
) -> AuditReport:
    """Test what a mechanism claims on one observed run.

    * participation: no observed pattern may have ||C 1_pi|| above the sensitivity (an exact check);
    * canary: Clopper-Pearson lower bound on mu, against `mechanism.gdp()`, and "canary fit", the model's one;
    * epsilon: Clopper-Pearson lower bounds on epsilon, against `mechanism.epsilon(delta)`, by likelihood
      ratios that do not know the batches where the guarantee is amplified; at delta, and at a larger one,
      where a guarantee that holds at every delta is refuted with far fewer canaries;
    * sampling: where sampling amplifies, whether canaries are drawn by the law of the scheme, each anew at
      every step and independently of the others (`draw_test`);
    * covariance: the emitted noise is noise_std * C^-1 Z.

    Args:
        mechanism: what is claimed.
        observation: of a run of it; at least 8 canaries put in and 8 left out.
        confidence: 1 - probability that any claim that is kept is called violated; shared by the tests.
        delta: None for the mechanism's own.
        factor: lack of noise for which powers are stated, > 1.
        subject: what was audited, in words.

    Raises:
        ValueError: if the observation does not fit the mechanism, or has too few canaries.
        UnsupportedError: if the strategy is not square.
    """
    confidence = fraction("confidence", confidence)
    delta = mechanism.delta if delta is None else fraction("delta", delta)
    if len(observation.rows) != mechanism.steps:
        raise ValueError(
            f"{len(observation.rows)} rows were observed, but n={mechanism.steps}: run it whole."
        )
    sampling, possible = mechanism.sampling, observation.possible
    if sampling.public_groups > 1 and np.all(possible):
        raise ValueError(
            f"the observation says that canaries could be in any batch, but {type(sampling).__name__}"
            " sampling draws each from one group: give possible=, the steps that sample a canary's group."
        )
    put_in = observation.put_in
    if min(put_in.sum(), (~put_in).sum()) < 8:
        raise ValueError(
            f"{put_in.sum()} canaries put in and {(~put_in).sum()} left out: at least 8 of each are needed."
        )
    each = 1.0 - (1.0 - confidence) / (_TESTS + mechanism.amplified)
    scores, norms = canary_scores(mechanism.strategy, observation.rows, observation.participation)
    canaries = _Canaries(mechanism, observation, scores / mechanism.noise_std, norms)
    findings = [_participation(mechanism, norms), *canaries.findings(each, factor)]
    if mechanism.amplified:
        opposite = mechanism.adjacency == "replace_one"
        data = mechanism.strategy, sampling, observation.rows, mechanism.noise_std
        scores = likelihood_ratios(*data, possible=possible, opposite=opposite)
    else:
        scores, put_in = canaries.scores, canaries.put_in
    for at in (delta, _visible_delta(mechanism)):
        findings.append(_epsilon(mechanism, scores, put_in, at, each))
    if mechanism.amplified:
        findings.append(_sampling(mechanism, observation, each))
    findings.append(_covariance(mechanism, observation, each, factor))
    return AuditReport(
        subject or repr(mechanism),
        mechanism.fingerprint,
        tuple(findings),
        confidence,
        factor,
        delta,
        (int(put_in.sum()), int((~put_in).sum())),
        canaries.needed(each, factor),
        _assumptions(mechanism),
    )


def audit_mechanism(
    mechanism: Mechanism,
    *,
    canaries: int = 1000,
    confidence: float = 0.95,
    delta: float | None = None,
    factor: float = 1.2,
    key: bytes | None = None,
    seed: int | None = None,
) -> AuditReport:
    """Audit the noise that `mechanism` emits: canaries on coordinates of their own, added to the stream.

    Every canary takes part as the scheme draws it, or by the strongest allowed pattern found where nothing is
    sampled. Batches, clipping and the optimizer are not part of this: `audit_training` goes through them.

    Args:
        mechanism: what is claimed.
        canaries: m, half of them put in; noise and memory are n * m numbers.
        confidence, delta, factor: see `audit`.
        key: of the noise, 32 bytes; None for a fresh one.
        seed: of participation and of who is put in; None for fresh entropy.

    Raises:
        ValueError, UnsupportedError: see `audit`.
    """
    if not isinstance(mechanism, Mechanism):
        raise ValueError(
            f"mechanism is a {type(mechanism).__name__}: give a Mechanism (calibrate(…), plan.mechanism)."
        )
    rng = np.random.default_rng(seed)
    m = positive_int("canaries", canaries, minimum=16, remedy="Half of them are left out.")
    if mechanism.amplified:
        participation, possible = law_of(mechanism.sampling).draw_units(m, rng)
    else:
        pattern = strongest_pattern(mechanism.strategy, mechanism.participation)
        participation = np.repeat(pattern[:, None], m, axis=1)
        possible = np.ones(participation.shape, bool)
    contribution = draw_contribution(mechanism, m, rng)
    stream = mechanism.strategy.stream(m, std=mechanism.noise_std, key=key, dtype=np.float64)
    rows, state = participation * contribution, stream.init()
    for row in rows:
        noise, state = stream.next(state)
        row += noise
    observation = Observation(rows, participation, contribution, possible)
    return audit(
        mechanism,
        observation,
        confidence=confidence,
        delta=delta,
        factor=factor,
        subject=f"the noise stream of {mechanism!r}",
    )


def draw_contribution(mechanism: Mechanism, canaries: int, rng: np.random.Generator) -> Array:
    """1 for a random half of the canaries; what the adjacency makes of a canary left out for the others."""
    left_out = -1.0 if mechanism.adjacency == "replace_one" else 0.0
    return np.where(rng.permutation(canaries) < canaries // 2, 1.0, left_out)


class _Canaries:
    """Canaries that take part at least once, with scores in units of the noise."""

    def __init__(self, mechanism: Mechanism, observation: Observation, scores: Array, norms: Array) -> None:
        seen = norms > 0
        self.mechanism = mechanism
        self.scores, self.put_in = scores[seen], observation.put_in[seen]
        # replacing a contribution by its opposite moves the score twice as far
        distance = 2.0 if mechanism.adjacency == "replace_one" else 1.0
        self.distance, self.lowest = distance, 1.0 - distance
        self.strength = norms[seen] / mechanism.noise_std  # claimed mean of the score
        self.signal = observation.contribution[seen] * self.strength
        self.typical = self.distance * float(self.strength.mean()) if seen.any() else 0.0

    @property
    def mu(self) -> float:
        """mu of the strongest pattern, by the claimed noise."""
        return self.distance * float(self.strength.max())

    @property
    def claimed(self) -> float:
        return self.mechanism.gdp()

    @property
    def enough(self) -> bool:
        return min(int(self.put_in.sum()), int((~self.put_in).sum())) >= 8

    @property
    def _information(self) -> float:
        """Canaries of the strongest pattern, half of them put in, that would show mu as well as these do."""
        spread = np.square(self.signal - self.signal.mean()).sum() / self.mu**2
        return float(4 * spread)

    def needed(self, confidence: float, factor: float) -> int | None:
        """Canaries of these patterns for the fit to find noise too small by `factor`."""
        if not self.enough or factor * self.mu <= self.claimed:
            return None
        count = canaries_needed(self.claimed, factor=factor * self.mu / self.claimed, confidence=confidence)
        return None if count is None else math.ceil(count * len(self.scores) / self._information)

    def findings(self, confidence: float, factor: float) -> list[Finding]:
        """The bounds on mu, with a threshold half-way between the claimed means."""
        if not self.enough:
            return []
        threshold = float(self.strength.mean()) * (1.0 + self.lowest) / 2
        low, high = self.scores[~self.put_in], self.scores[self.put_in]
        bound = mu_by_threshold(low, high, threshold=threshold, confidence=confidence)
        fit = mu_by_fit(self.scores, self.signal / self.mu, confidence=confidence)
        effective = max(4, int(self._information))
        patterns = f"the audited patterns have mu {self.typical:.4g} on average, {self.mu:.4g} at most"
        power = fit_power(factor * self.mu, self.claimed, effective, confidence=confidence)
        what = "lower bound on mu ({})"
        return [
            _bound("canary", what.format("Clopper-Pearson"), bound, self.claimed, patterns),
            _bound(
                "canary fit",
                what.format("Gaussian fit"),
                fit,
                self.claimed,
                f"estimate {fit.estimate:.4g}",
                power,
            ),
        ]


def _bound(
    name: str, what: str, bound: LowerBound, claimed: float, note: str, power: float | None = None
) -> Finding:
    violated = bound.value > claimed
    return Finding(name, what, bound.value, claimed, violated, bound.confidence, power, note)


def _p_value(
    name: str, what: str, p_value: float, confidence: float, note: str, power: float | None = None
) -> Finding:
    level = 1.0 - confidence
    return Finding(name, what, p_value, level, p_value < level, confidence, power, note)


def _participation(mechanism: Mechanism, norms: Array) -> Finding:
    worst, allowed = float(norms.max()), mechanism.sensitivity.value
    what, violated = "largest norm of C 1_pi over the observed patterns", worst > allowed * (1 + 1e-9)
    return Finding("participation", what, worst, allowed, violated, 1.0, None, "exact, no statistics")


def _visible_delta(mechanism: Mechanism) -> float:
    """The largest of some deltas at which the claimed epsilon still leaves something to refute."""
    best = _DELTAS[0]
    for delta in _DELTAS[1:]:  # upwards, as accounting is slow where epsilon is tiny
        if mechanism.epsilon(best) < 0.6 or mechanism.epsilon(delta) < 0.3:
            break
        best = delta
    return best


def _epsilon(
    mechanism: Mechanism, scores: Array, put_in: NDArray[np.bool_], delta: float, confidence: float
) -> Finding:
    low, high = scores[~put_in], scores[put_in]
    bound, _ = bounds_by_ranks(low, high, delta=delta, confidence=confidence)
    claimed = mechanism.epsilon(delta)
    which = "likelihood ratios" if mechanism.amplified else "scores"
    apart = np.zeros(len(low)), np.ones(len(high))
    most = bounds_by_ranks(*apart, delta=delta, confidence=confidence)[0].value
    name = "epsilon" if delta == mechanism.delta else "epsilon at large delta"
    what = f"lower bound on epsilon at delta={delta:g} ({which})"
    return _bound(name, what, bound, claimed, f"so many canaries can show at most {most:.3g}")


def _sampling(mechanism: Mechanism, observation: Observation, confidence: float) -> Finding:
    test = draw_test(mechanism.sampling, observation.participation, observation.possible)
    what = "p-value of participation as the scheme draws it"
    return _p_value("sampling", what, test.p_value, confidence, test.note)


def _covariance(mechanism: Mechanism, observation: Observation, confidence: float, factor: float) -> Finding:
    test = covariance_test(mechanism.strategy, observation.noise(), mechanism.noise_std)
    power = scale_power(test.entries, factor=factor, failure=(1.0 - confidence) / len(test.p_values))
    what = "p-value of white noise in C times the emitted rows"
    note = f"least: {test.worst}; std {test.std_ratio:.4g} times the claimed"
    return _p_value("covariance", what, test.p_value, confidence, note, power)


def _assumptions(mechanism: Mechanism) -> tuple[str, ...]:
    hidden = (
        "the auditor knows C, the noise multiplier and each canary's group, and for the canary test"
        " its batches"
        if mechanism.amplified
        else "the auditor knows C, the noise multiplier and in which batches each canary is"
    )
    return (
        "canaries are orthogonal to one another and to all other contributions, and which are put in was"
        " drawn at random; scores of different canaries are independent, as they are for noise that is"
        " independent between coordinates (tested by covariance)",
        hidden + "; an adversary may know more, so the bounds are lower bounds",
        "the canary fit also assumes Gaussian scores; the other bounds do not",
        "noise whose randomness can be predicted (a weak or leaked key) is beyond any of these tests",
    )
