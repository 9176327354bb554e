"""Benchmark `relay` gives a master no more than it hands on one by one, which is what it counts."""

import pytest

from benchmarks.relay import FULL, UPDATE_BYTES, updates_ahead_max, work_of
from gradwire_protocol.limits import charge_of
from gradwire_server.config import BACKLOG_BYTES_MAX


@pytest.mark.parametrize("workers", FULL.workers)
def test_what_is_under_way_to_a_worker_fits_in_what_the_master_keeps_for_it(workers: int) -> None:
    work = work_of(workers, bytes(UPDATE_BYTES), FULL.gigabits)

    under_way = work.others * updates_ahead_max(work)

    assert under_way >= work.others
    assert under_way * charge_of(UPDATE_BYTES) < BACKLOG_BYTES_MAX
