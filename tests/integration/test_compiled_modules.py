"""What torch compiles to machine code, with a compiler, trains with what is not compiled."""

from shutil import which

import pytest
import torch
from torch import nn

from support.local_master import LocalMaster
from support.training_loops import adam, compiled_and_run, mlp, train, two_workers

QUICKLY = {
    "compile_threads": 1,
    "cpp_cache_precompile_headers": False,
    "cpp.simdlen": 1,
    "cpp.vec_isa_ok": True,
}
"""So that inductor compiles a few kernels, and no experiments with the processor, nor headers and
processes that pay where there are many."""


@pytest.mark.skipif(not which("g++"), reason="inductor takes a C++ compiler")
@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of torch itself
def test_a_module_that_inductor_compiled_trains_with_one_that_is_not() -> None:
    compiled: list[nn.Module] = []

    def target_of(module: nn.Module) -> object:
        """Compile the first one: its parameters are moved after that, by joining."""
        if not compiled:
            compiled.append(compiled_and_run(module, "inductor"))
        return module

    with (
        torch._inductor.config.patch(QUICKLY),
        LocalMaster() as master,
        two_workers(master, mlp, target_of=target_of) as workers,
    ):
        optimizers = [adam(worker) for worker in workers]
        workers[0].module = compiled[0]
        train(workers, optimizers, 60)
