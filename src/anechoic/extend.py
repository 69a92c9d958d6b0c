"""What a strategy, participation, sampling scheme, accountant or workload of your own is made of.

    from anechoic.extend import SquareStrategy, Structure, serializable

The documentation builds one of each. `anechoic.testing` has a contract for each, which says whether it keeps
what the others rely on. What a registered function answers is taken as it is, and guarantees follow from it.
"""

from anechoic._serialize import serializable
from anechoic.accounting.accountant import Accountant, accountant_of, only_deterministic, refuse_replacing
from anechoic.accounting.loss_distributions.composition import composed_epsilon
from anechoic.accounting.search import least_noise
from anechoic.audit.participation_law import Counts, ParticipationLaw, law_of, log_mix
from anechoic.batches.base import Batches, batches_of, below, integers
from anechoic.noise.recurrence import Autoregressive, Buffered, MovingAverage, Recurrence, StateSpace
from anechoic.participation.accounts import first_step
from anechoic.participation.base import Participation
from anechoic.planning.user_choices import register_strategies
from anechoic.sampling.base import Sampling
from anechoic.sensitivity.dispatch import sensitivity_of
from anechoic.sensitivity.result import Sensitivity
from anechoic.statement.theorem import Theorem
from anechoic.strategies.base import SquareStrategy, Strategy, Structure
from anechoic.workloads.base import GeneralWorkload, Workload

__all__ = [
    # strategies, and how their noise is made
    "Strategy",
    "SquareStrategy",
    "Structure",
    "serializable",
    "register_strategies",
    "Recurrence",
    "Autoregressive",
    "Buffered",
    "MovingAverage",
    "StateSpace",
    # participations and their sensitivity
    "Participation",
    "Sensitivity",
    "Theorem",
    "first_step",
    "sensitivity_of",
    # sampling schemes, their batches and accountants
    "Accountant",
    "Batches",
    "Sampling",
    "accountant_of",
    "batches_of",
    "below",
    "composed_epsilon",
    "integers",
    "least_noise",
    "only_deterministic",
    "refuse_replacing",
    # the law of a draw, for audits
    "Counts",
    "ParticipationLaw",
    "law_of",
    "log_mix",
    # workloads
    "GeneralWorkload",
    "Workload",
]
