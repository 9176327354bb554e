"""A run: from the first worker's parameters on."""

import numpy as np

from gradwire_codecs.arrays import Int32Array
from gradwire_protocol.messages.fields import BLOCK_ELEMENTS
from gradwire_protocol.messages.layout import Layout, Tensor
from gradwire_protocol.messages.replicas import Snapshot
from gradwire_server.state.run import Run
from support.peer import join_request

TWO_BLOCKS = Layout((Tensor("a", (BLOCK_ELEMENTS + 2,)),))


def block(start: int, values: Int32Array) -> Snapshot:
    return Snapshot(start, values.astype("<i4").tobytes())


def test_a_run_has_the_name_the_layout_and_the_quantum_of_its_first_worker() -> None:
    layout = Layout((Tensor("a", (2, 3)), Tensor("b", ())))

    run = Run.begin("alpha", join_request(layout=layout, quantum_exponent=-20))

    assert (run.name, run.layout, run.finished) == ("alpha", layout, False)
    assert run.replica.values.tolist() == [0] * 7
    assert run.replica.quantum_exponent == -20
    assert run.relay.versions == {}


def test_a_run_is_not_founded_until_somebody_says_that_the_parameters_are_there() -> None:
    run = Run.begin("alpha", join_request())
    assert not run.founded

    run.assembly = None

    assert run.founded


def test_blocks_that_come_in_are_the_replica() -> None:
    run = Run.begin("alpha", join_request(layout=TWO_BLOCKS))
    assert run.assembly is not None

    assert not run.assembly.accept_block(block(BLOCK_ELEMENTS, np.array([5, -6], np.int32)))
    assert run.assembly.accept_block(block(0, np.arange(BLOCK_ELEMENTS, dtype=np.int32)))

    assert run.replica.values.tolist() == [*range(BLOCK_ELEMENTS), 5, -6]


def test_the_replica_can_be_changed_when_it_is_complete() -> None:
    run = Run.begin("alpha", join_request())
    assert run.assembly is not None
    run.assembly.accept_block(block(0, np.arange(6, dtype=np.int32)))

    run.replica.values += 1

    assert run.replica.values.tolist() == [1, 2, 3, 4, 5, 6]


def test_a_run_begins_again_with_nothing_of_the_worker_that_is_gone() -> None:
    run = Run.begin("alpha", join_request(layout=TWO_BLOCKS))
    assert run.assembly is not None
    run.assembly.accept_block(block(BLOCK_ELEMENTS, np.array([7, 7], np.int32)))

    run.restart_founding(join_request(layout=TWO_BLOCKS, quantum_exponent=-10))

    assert not run.replica.values.any()
    assert run.replica.quantum_exponent == -10
    assert np.shares_memory(run.replica.values, np.frombuffer(run.assembly.values, "<i4"))
    assert not run.founded
    assert run.layout == TWO_BLOCKS
    assert run.assembly.elements_received == 0
