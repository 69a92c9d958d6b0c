"""A snapshot of the public names: a change here is a change of the API, and belongs in the changelog."""

import ast
import re
from importlib import import_module
from pathlib import Path

import pytest

import anechoic as an

ROOT = Path(__file__).resolve().parents[1]
SOURCE = ROOT / "src" / "anechoic"
#: A ratchet: it may go down. Whoever needs one more name takes another one out. The estimators of `linear`
#: have the names of scikit-learn's, which are known before anybody reads a page: they came on top of 220.
MOST = 237

# what users type, by room
PUBLIC = {
    "": """
        AnechoicError Composition EndlessMechanism Mechanism Units __version__ accounting audit
        calibrate calibrate_endless compose error errors extend loss lower_bounds noise optimize
        participation plan sampling select sensitivity strategies units workloads
    """,
    "accounting": """
        Verified epsilon_of gaussian_delta gaussian_epsilon gaussian_mu poisson_epsilon
        poisson_noise_multiplier
    """,
    "audit": "Observation ScoreAudit audit audit_mechanism from_scores",
    "budget": "BudgetBook",
    "errors": """
        AnechoicError CheckpointError DesynchronizedError GuaranteeError HorizonError MismatchError
        PerformanceWarning ReplayError UnsupportedError
    """,
    "extend": """
        Accountant Autoregressive Batches Buffered Counts GeneralWorkload MovingAverage Participation
        ParticipationLaw Recurrence Sampling Sensitivity SquareStrategy StateSpace
        Strategy Structure Theorem Workload accountant_of batches_of below composed_epsilon
        first_step integers law_of least_noise log_mix only_deterministic
        refuse_replacing register_strategies sensitivity_of serializable
    """,
    "federated": """
        Cohorts FedAdam MinSeparation ParticipationPolicy SGD Server ServerOptimizer TooFewClients plan_rounds
        to_grid
    """,
    "flower": """
        ClippedUpdate CorrelatedFedOpt Labels Partitions PublicKeys clipped_update clipped_update_mod
    """,
    "linear": "LinearRegression LogisticRegression Ridge",
    "functional": "clip_and_sum clipped_sum unflatten",
    "lower_bounds": "lower_bound prefix_sum_lower_bound",
    "noise": "NoiseStream derive new_key",
    "optimize": """
        balls_in_bins banded banded_inverse banded_toeplitz blt dense dense_bound toeplitz
    """,
    "participation": "Cyclic FullBatch MinSep OncePerEpoch Patterns Single",
    "runs": "Journal conflicts digest_key_of identity_of",
    "sampling": """
        BallsInBins CyclicPoisson External FixedOrder FixedSize MinSepSampling Poisson RandomAllocation
    """,
    "strategies": """
        BLT Banded BandedInverse BandedToeplitz ColumnNormalized Dense FullTree Identity Output
        Restarted Toeplitz Tree endless from_factorization make_endless
    """,
    "streaming": """
        Accumulator Clock Count Distribution Grouped Histogram Mean PartitionSelectionHistogram Quantiles
        Running SlidingWindow Stream Sum read_releases statement
    """,
    "testing": """
        AccountantContract ParticipationContract SamplingContract StrategyContract WorkloadContract
    """,
    "theory": """
        Ball LinearRegression LqMechanism PrivateFTRL Simplex StronglyConvex
        asymptotic_suboptimality banded_inverse_noise blt_noise finite_time_bound l1_step
        last_iterate_excess last_iterate_rho mirror_step optimal_noise optimized_strongly_convex_bound
        regression_bounds strongly_convex_bound trajectory
    """,
    "torch": """
        BatchMemoryManager CorrectedAdam PrivacyEngine RecordStream ReleaseRecorder audit_training
        causal_lm_loss read_mechanism seq2seq_loss
    """,
    "torch.sources": "GradientSource",
    "engines.frames": "accumulated",
    "engines.spark": "StreamSink releases",
    "trainers": "Privacy",
    "trainers.lightning": "PrivateStrategy",
    "trainers.transformers": "PrivateTrainer",
    "units": "Units bounded_batches check_schema find_duplicates",
    "workloads": """
        exponential_decay from_coefficients from_dense momentum nesterov prefix_sum restart_differences
        scheduled sliding_window
    """,
}


def names_of(path):
    """The `__all__` of a module, read and not imported."""
    for node in ast.parse(path.read_text("utf-8")).body:
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "__all__":
            return ast.literal_eval(node.value)
    return []


def test_public_names():
    found = {}
    for path in sorted(SOURCE.rglob("*.py")):
        if names := names_of(path):
            room = path.relative_to(SOURCE).with_suffix("").as_posix().removesuffix("__init__").strip("/")
            found[room.replace("/", ".")] = sorted(names)
    assert found == {room: sorted(names.split()) for room, names in PUBLIC.items()}
    assert sum(map(len, found.values())) <= MOST


def needed_by(room):
    """The packages of an extra that a room imports."""
    if room.startswith("trainers."):
        return [room.removeprefix("trainers.")]
    engines = {"engines.spark": ["pyspark", "pyarrow"]}
    return {"linear": ["sklearn"], "flower": ["flwr"], **engines}.get(room, [])


@pytest.mark.parametrize("room", sorted(PUBLIC))
def test_public_names_are_there(room):
    for package in needed_by(room):
        pytest.importorskip(package, reason="an extra installs it")
    module = import_module(f"anechoic.{room}".rstrip("."))
    assert not [name for name in PUBLIC[room].split() if not hasattr(module, name)]


def scripts():
    """(where, code) of what pages and examples show in Python."""
    for page in [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]:
        for block in re.findall(r"```python\n(.*?)```", page.read_text("utf-8"), flags=re.DOTALL):
            yield page.name, block
    yield from ((path.name, path.read_text("utf-8")) for path in sorted((ROOT / "examples").rglob("*.py")))


def test_pages_and_examples_import_public_names_alone():
    taken = {
        (where, node.module.removeprefix("anechoic").lstrip("."), alias.name)
        for where, code in scripts()
        for node in ast.walk(ast.parse(code))
        if isinstance(node, ast.ImportFrom) and f"{node.module}.".startswith("anechoic.")
        for alias in node.names
    }
    rooms = {room.partition(".")[0] for room in PUBLIC}
    hidden = {
        (where, room, name)
        for where, room, name in taken
        if name not in PUBLIC.get(room, "").split()
        and (room or name not in rooms)
        # a notebook may draw with the library's charts, and take the flights that the demo embeds
        and not (where[:2].isdigit() and (room.startswith("plots.") or room.startswith("demo.")))
    }
    assert taken and not hidden


def test_tab_completion_shows_what_is_public():
    assert dir(an) == sorted(an.__all__)


def test_rooms_are_found_where_they_are_used():
    for room in ("federated", "flower", "streaming", "theory", "torch"):
        assert getattr(an, room).__name__ == f"anechoic.{room}"
    with pytest.raises(AttributeError, match="no attribute 'training'"):
        an.training


def test_one_participation_is_the_default_of_every_question():
    a, c, once = an.workloads.prefix_sum(6), an.strategies.Identity(6), an.participation.Single()
    assert an.sensitivity(c).value == pytest.approx(an.sensitivity(c, once).value)
    assert an.loss(a, c) == pytest.approx(an.loss(a, c, once, "rms"))
    least = an.lower_bounds.lower_bound
    assert least(a).value == pytest.approx(least(a, once, "rms").value)
