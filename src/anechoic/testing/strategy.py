"""The contract of a strategy, for your own tests to inherit."""

from __future__ import annotations

from collections.abc import Iterable

from anechoic.strategies.base import Strategy
from anechoic.testing import guarantee, matrix, noise
from anechoic.testing._compare import Contract, rule


class StrategyContract(Contract[Strategy]):
    """Tests of a strategy class, for pytest: inherit it in a class named Test…, and give `strategies`.

        class TestMine(StrategyContract):
            def strategies(self):
                return [Mine(1), Mine(2), Mine(9), Mine(16)]

    Give at least n = 1, an odd n, and one of every kind that your constructor can make: each parameter with a
    default takes another value in one of them, or `truncate` and files could lose it unseen.

    Attributes:
        serialized: whether strategies must survive a round trip through JSON.
        seed: of the random vectors compared.
    """

    gives = "strategies"

    def strategies(self) -> Iterable[Strategy]:
        """The strategies to test, small enough for dense algebra."""
        raise NotImplementedError("give strategies(): the strategies to test, n = 1 and an odd n among them.")

    test_the_matrix_is_lower_triangular_or_has_a_left_inverse = rule(matrix.check_dense)
    test_multiply_and_solve_agree_with_dense_algebra = rule(matrix.check_algebra, "seed")
    test_the_structure_is_true = rule(matrix.check_structure)
    test_norms_of_columns_and_combs = rule(matrix.check_norms)
    test_truncate_is_the_strategy_of_the_first_steps = rule(matrix.check_truncate, "seed")
    test_wrong_arguments_are_refused = rule(matrix.check_refusals)
    test_the_recurrence_makes_the_noise = rule(noise.check_recurrence, "seed")
    test_the_stream_emits_the_noise = rule(noise.check_stream)
    test_the_decoder_times_the_strategy_is_the_workload = rule(guarantee.check_decoder)
    test_error_agrees_with_dense_algebra = rule(guarantee.check_error)
    test_sensitivity_is_never_below_the_supremum = rule(guarantee.check_sensitivity, "seed")

    def test_each_parameter_has_another_value_than_its_default(self) -> None:
        matrix.check_varied(list(self.strategies()))
