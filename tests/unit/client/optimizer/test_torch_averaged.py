"""`AveragedState`: what is read is written; what no optimizer has is not."""

import numpy as np
import torch

from gradwire.optimizer.torch_averaged import AveragedState
from gradwire.optimizer.torch_state import TorchOptimizer
from gradwire.target.torch_parameters import layout_of
from gradwire_codecs.arrays import Float32Array
from gradwire_protocol.messages.layout import Layout

QUANTUM = 2.0**-24
SHAPES = ((2, 3), (), (4,))


class Worker:
    """An Adam, and the elements of its state."""

    def __init__(self) -> None:
        self.tensors = [torch.nn.Parameter(torch.ones(shape)) for shape in SHAPES]
        self.adam = torch.optim.Adam(self.tensors)
        model: Layout = layout_of([(str(i), tensor) for i, tensor in enumerate(self.tensors)])
        optimizer = TorchOptimizer(self.adam, self.tensors, model)
        sizes = [tensor.elements for tensor in optimizer.kept.tensors(model)]
        self.elements: Float32Array = np.zeros(sum(sizes), np.float32)
        self.averaged = AveragedState(optimizer, model, self.elements, QUANTUM)

    def step(self) -> None:
        for tensor in self.tensors:
            tensor.grad = torch.ones_like(tensor)
        self.adam.step()


def test_who_is_given_what_another_has_read_has_its_state() -> None:
    one, other = Worker(), Worker()
    one.step()
    one.averaged.read()
    other.elements[:] = one.elements
    other.averaged.write()

    for mine, theirs in zip(one.tensors, other.tensors, strict=True):
        ours, taken = one.adam.state[mine], other.adam.state[theirs]
        assert taken.keys() == ours.keys()
        for name, value in ours.items():
            torch.testing.assert_close(taken[name], value, rtol=2e-4, atol=1e-9)


def test_elements_that_are_all_zero_leave_an_optimizer_cold() -> None:
    worker = Worker()
    worker.averaged.read()
    worker.averaged.write()

    assert not worker.adam.state


def test_a_number_of_steps_below_zero_is_none() -> None:
    worker = Worker()
    worker.step()
    worker.averaged.read()
    worker.elements[-len(SHAPES) :] = -3 * QUANTUM
    worker.averaged.write()

    assert [worker.adam.state[tensor]["step"].item() for tensor in worker.tensors] == [0, 0, 0]
    worker.step()
    assert all(torch.isfinite(tensor).all() for tensor in worker.tensors)
