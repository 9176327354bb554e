"""Benchmark `relay` gives a master no more than it hands on one by one, which is what it counts."""

import asyncio
import os
from math import isnan

import pytest

from benchmarks.programs import Meter
from benchmarks.relay import FULL, UPDATE_BYTES, updates_ahead_max, work_of
from benchmarks.work import Rate
from benchmarks.workers import Progress
from gradwire_protocol.limits import charge_of
from gradwire_server.config import BACKLOG_BYTES_MAX


@pytest.mark.parametrize("workers", FULL.workers)
def test_what_is_under_way_to_a_worker_fits_in_what_the_master_keeps_for_it(workers: int) -> None:
    work = work_of(workers, bytes(UPDATE_BYTES), FULL.gigabits)

    under_way = work.others * updates_ahead_max(work)

    assert under_way >= work.others
    assert under_way * charge_of(UPDATE_BYTES) < BACKLOG_BYTES_MAX


def test_a_relay_that_was_done_before_the_meter_began_has_no_rate_per_processor_second() -> None:
    work = work_of(2, bytes(UPDATE_BYTES), 0.01)
    meter = Meter(os.getpid())
    meter.seconds, meter.processor_seconds = 0.5, 0.0

    rate = Rate.of(work, meter)

    assert rate.gigabits_per_second == 2 * work.gigabits_out
    assert isnan(rate.gigabits_per_processor_second)


async def test_what_goes_wrong_at_a_worker_is_raised_where_it_is_waited_for() -> None:
    progress = Progress()
    asyncio.get_running_loop().call_soon(progress.fail, "3 updates came added up")

    with pytest.raises(RuntimeError, match="3 updates"):
        await progress.wait(10)
