"""All costs on this machine: those of the codec from its kernels, others from a local run."""

from collections.abc import Callable
from dataclasses import asdict

from gradwire.cli.estimate.costs import Costs
from gradwire.cli.estimate.kernels import measure_kernels
from gradwire.cli.estimate.local_run import measure_run
from gradwire_codecs import warm_up


def calibrate(
    parameters: int, density: float, *, codec_threads: int, say: Callable[[str], None]
) -> Costs:
    """Measure all costs on this machine; `say` is called with each thing that is being done."""
    say("loading the codec, or compiling it where it never ran")
    warm_up()
    say("measuring the codec")
    kernels = measure_kernels(parameters, density, codec_threads=codec_threads)
    say("measuring a master and sessions on loopback")
    run = measure_run(kernels)
    return Costs(**asdict(kernels), **asdict(run))
