"""Backoff: doubles up to a limit, and not for everyone alike."""

from itertools import islice
from random import Random

import pytest

from gradwire.worker.reconnection import FIRST_SECONDS, JITTER, SECONDS_MAX, pauses


@pytest.mark.parametrize("seed", range(5))
def test_every_pause_is_near_twice_the_last_one_up_to_a_limit(seed: int) -> None:
    nominal = FIRST_SECONDS
    for pause in islice(pauses(Random(seed).random), 20):
        assert (1 - JITTER) * nominal <= pause <= (1 + JITTER) * nominal
        nominal = min(2 * nominal, SECONDS_MAX)


def test_two_workers_do_not_wait_alike() -> None:
    one, other = (list(islice(pauses(Random(seed).random), 5)) for seed in (1, 2))

    assert one != other
