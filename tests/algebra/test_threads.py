import threading

import numpy as np
import pytest
from threadpoolctl import threadpool_info, threadpool_limits

from anechoic import workloads
from anechoic.algebra import threads


def blas_threads():
    return {pool["num_threads"] for pool in threadpool_info() if pool["user_api"] == "blas"}


@pytest.fixture(autouse=True)
def two_threads():
    np.ones((2, 2)) @ np.ones((2, 2))
    with threadpool_limits(2, user_api="blas"):
        if blas_threads() != {2}:
            pytest.skip("this BLAS has one thread")
        yield


def test_one_thread_inside_and_as_before_afterwards():
    with pytest.raises(KeyError), threads.one_blas_thread():  # an error gives the threads back too
        with threads.one_blas_thread():
            assert blas_threads() == {1}
        assert blas_threads() == {1}
        raise KeyError
    assert blas_threads() == {2}


def test_a_thread_that_is_not_the_main_one_changes_nothing():
    seen = []

    def other():
        with threads.one_blas_thread():
            seen.append(blas_threads())

    thread = threading.Thread(target=other)
    thread.start()
    thread.join()
    assert seen == [{2}]


def test_threads_that_overlap_give_them_back():
    entered, leave = threading.Event(), threading.Event()

    def other():
        with threads.one_blas_thread():
            entered.set()
            leave.wait(10)

    with threads.one_blas_thread():  # leaves first
        thread = threading.Thread(target=other)
        thread.start()
        assert entered.wait(10)
    leave.set()
    thread.join()
    assert blas_threads() == {2}


@pytest.mark.parametrize("n", [threads.MANY, threads.MANY + 1])
def test_large_dense_problems_keep_their_threads(n):
    seen = []

    @threads.on_one_thread_if_small
    def work(workload):
        seen.append(blas_threads())

    work(workloads.prefix_sum(n))
    work(workload=workloads.prefix_sum(n))
    assert seen == [{1 if n <= threads.MANY else 2}] * 2
