"""A worker whose memory is damaged: real threads, a real master, and its metrics."""

from typing import Literal

import numpy as np
import pytest

import gradwire
from support.health import metrics
from support.local_master import MasterProcess
from support.sessions import finish, participant_of, replica_of
from support.tiers import variants
from support.waiting import wait_for_process

ELEMENTS = 600_000
"""Three blocks."""


@pytest.mark.parametrize("feedback", variants("local", "shared"))
def test_damage_is_found_counted_and_mended_while_both_train(
    feedback: Literal["local", "shared"],
) -> None:
    random = np.random.default_rng(1)
    targets = [np.zeros(ELEMENTS, np.float32) for _ in range(2)]
    with MasterProcess() as master:
        sessions = [
            gradwire.join(
                target,
                master=master.address,
                feedback=feedback,
                threshold=1e-3,
            )
            for target in targets
        ]
        damaged, _ = sessions
        participant_of(damaged).shared.repair.seconds = 0.05

        def train() -> None:
            for target, session in zip(targets, sessions, strict=True):
                target += random.normal(0, 1e-3, ELEMENTS).astype(np.float32)
                session.step()

        for _ in range(5):
            train()
        values = replica_of(damaged)
        values[[7, 300_000]] ^= 1 << 18

        def is_mended() -> bool:
            train()
            return damaged.stats.blocks_repaired >= 2

        wait_for_process(is_mended, "the damage to be mended")
        finish(*sessions)

        assert damaged.digest() == sessions[1].digest()
        assert np.array_equal(targets[0], targets[1])
        assert sessions[1].stats.blocks_repaired == 0
        counted = metrics(master.announcement["http"])
        assert counted["gradwire_digest_mismatches_total"] >= 1
        assert counted["gradwire_blocks_repaired_total"] >= 2
