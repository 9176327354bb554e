"""Kernels are compiled before a run needs them, and kept where that is possible at all."""

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from gradwire_codecs.kernels.compiled import PORTABLE, portable_name, portable_processors
from support.tiers import variants
from support.waiting import PROCESS

SESSION = """
import numpy as np

from gradwire_codecs import *
from gradwire_codecs.kernels.compiled import KERNELS
from gradwire_codecs.feedback.contributions import encode_dense
from gradwire_codecs.format.update import split_update
from gradwire_codecs.replica.digests import BlockDigests
from gradwire_codecs.replica.outer_step import OuterSum, look_ahead
from gradwire_codecs.replica.round_sum import RoundSum
from gradwire_codecs.warm_up import warm_up_rest

warm_up()
warm_up_rest()
before = {kernel: list(kernel.signatures) for kernel in KERNELS}

def work(kind, elements):
    random = np.random.default_rng(elements)
    memory = np.zeros(elements + 1, np.float32)
    mine = kind(memory[1:], Replica.zeros(elements))
    peer = kind(np.zeros(elements, np.float32), Replica(np.zeros(elements + 1, np.int32)[1:]))
    ranges = [(0, elements // 2), (elements // 2, elements)] if elements > 1 else [(0, 1)]
    digests = BlockDigests.of(peer.replica.values, 1000)
    for scale, multiple in (
        (1e-2, 1),
        (1e-3, 2**24),
        (1e-6, 1000),
    ):
        mine.parameters += random.normal(0, scale, elements).astype(np.float32)
        for body in mine.encode(multiple, bytes_max=2**16):
            for given in (body, bytearray(body), memoryview(body)):
                update = decode(given, elements)
                peer.replica.first_outside(update)
                digests.add(update)
                digests.subtract(update)
                peer.apply(given)
    mine.parameters += random.normal(0, 1e-3, elements).astype(np.float32)
    total, outer = RoundSum(elements, ranges), OuterSum(elements, ranges, rate=0.7, momentum=0.9)
    for magnitude_max in (7, 127):
        for body in encode_dense(mine, ranges, magnitude_max, bytes_max=2**16):
            update = decode(body, elements)
            peer.replica.first_outside(update)
            digests.add(update)
            peer.apply(body)
            peer.replica.apply(body)
            total.add(update)
            outer.add(update)
        look_ahead([update], 0.9, np.zeros(elements, np.int32))
        for mean in (*total.take_mean(2, magnitude_max), *outer.take_mean(2, magnitude_max)):
            for body in split_update(mean, 2**16):
                peer.apply(body)
    mine.encode(1, magnitude_max=2**31 - 1, start=elements // 2)
    mine.check()
    mine.absorb()
    mine.apply_sum(peer.replica.values)
    mine.correct_replica(peer.replica.values)
    mine.first_threshold(1e-3)
    mine.replica.digest()
    mine.drop_residual()

for kind in (LocalFeedback, SharedFeedback):
    for elements in (1, 77, 2 * 8 * 2**15 + 5):
        work(kind, elements)

compiled = [kernel for kernel, signatures in before.items() if kernel.signatures != signatures]
assert not compiled, compiled
"""

SHARING = """
import numpy as np

from gradwire_codecs import *
from gradwire_codecs.format.block_packing import pack_block, unpack_block
from gradwire_codecs.format.update import split_update
from gradwire_codecs.kernels.compiled import KERNELS
from gradwire_codecs.replica.digests import BlockDigests
from gradwire_codecs.replica.merging import merge

warm_up()
before = {kernel: list(kernel.signatures) for kernel in KERNELS}

def work(elements):
    random = np.random.default_rng(elements)
    master = Replica.zeros(elements)
    mine = LocalFeedback(np.zeros(elements, np.float32), Replica.zeros(elements))
    peer = LocalFeedback(np.zeros(elements, np.float32), Replica.zeros(elements))
    digests = BlockDigests.of(master.values, 1000)
    # The last one is the end of training, which sends the whole residual.
    for scale, multiple, most in ((1e-2, 2**17, 127), (1e-3, 2**16, 127), (1e-7, 1, 2**31 - 1)):
        before = mine.residual()
        mine.read_residual(before)
        mine.parameters += random.normal(0, scale, elements).astype(np.float32)
        mine.add_growth(before, np.float32(0.9))
        bodies = mine.encode(multiple, magnitude_max=most, bytes_max=2**16)
        updates = [decode(body, elements) for body in bodies]
        for update in updates:
            master.first_outside(update)
            digests.add(update)
            master.apply(update)
        for body in split_update(merge(updates, elements), 2**16) if updates else []:
            peer.apply(decode(body, elements))
    unpack_block(pack_block(master.values), elements)
    peer.apply_sum(mine.replica.values - peer.replica.values)
    peer.drop_residual()
    assert peer.replica.digest() == mine.replica.digest() == digests.whole

for elements in (1, 77, 2**17 + 5):
    work(elements)

compiled = [kernel for kernel, signatures in before.items() if kernel.signatures != signatures]
assert not compiled, compiled
"""

LOADS = """
import sys

from gradwire_codecs import warm_up
from gradwire_codecs.kernels.compiled import KERNELS

warm_up()
compiled = sum(sum(kernel.stats.cache_misses.values()) for kernel in KERNELS)
print(compiled, *sorted({"numba.np.arraymath", "numba.np.linalg", "scipy.linalg"} & {*sys.modules}))
"""

KERNEL = """
from gradwire_codecs.kernels.compiled import compiled

@compiled
def doubled(x):
    return 2 * x
"""

PROGRAM = """
import kernel

assert (kernel.doubled(21), kernel.doubled(0.25)) == (42, 0.5)
print(sum(kernel.doubled.stats.cache_hits.values()))
"""


PORTABLE_HERE = portable_name()


def command(code: str) -> list[str]:
    return [sys.executable, "-B", "-c", code]


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Path]:
    """Return a folder with a module of one kernel, which no machine code can be put beside."""
    (tmp_path / "kernel.py").write_text(KERNEL, encoding="utf-8")
    (tmp_path / "__pycache__").touch()
    (tmp_path / "file").touch()
    yield tmp_path
    shutil.rmtree(tmp_path)


def surroundings(folder: Path, **places: Path) -> dict[str, str]:
    """Return an environment in which only some of the places for machine code can be written."""
    nowhere = folder / "file" / "folder"  # cannot be made, by root neither
    environment = {name: value for name, value in os.environ.items() if "NUMBA" not in name}
    for name in ("HOME", "XDG_CACHE_HOME", "NUMBA_CACHE_DIR"):
        environment[name] = str(places.get(name, nowhere))
    return environment


def hits(folder: Path, *, code: str = PROGRAM, processor: str = "", **places: Path) -> int:
    """Run the kernel with two signatures; return how many were in the cache."""
    kind = {"NUMBA_CPU_NAME": processor, "NUMBA_CPU_FEATURES": ""} if processor else {}
    answer = subprocess.run(
        command(code), cwd=folder, env=surroundings(folder, **places) | kind, check=True, text=True,
        capture_output=True, timeout=PROCESS,
    )  # fmt: skip
    return int(answer.stdout)


def test_after_a_warm_up_nothing_is_compiled_any_more() -> None:
    """For whatever a session gives the kernels: feedback, sizes, alignment, densities."""
    subprocess.run(command(SESSION), check=True)


def test_what_sharing_takes_is_compiled_without_the_rest() -> None:
    subprocess.run(command(SHARING), check=True)


def test_kernels_that_are_in_the_cache_are_loaded_without_the_compiler() -> None:
    """And without the linear algebra that it brings along, which takes longer than all of them."""
    said = [
        subprocess.run(command(LOADS), check=True, text=True, capture_output=True).stdout.split()
        for _ in range(2)
    ]

    assert said[1] == ["0"]


def test_one_folder_that_can_be_written_to_is_enough(folder: Path) -> None:
    assert [hits(folder, XDG_CACHE_HOME=folder / "cache") for _ in range(2)] == [0, 2]


@pytest.mark.deep("more places for compiled kernels")
def test_what_is_not_in_the_cache_is_compiled_beside_what_is(folder: Path) -> None:
    cache, once = folder / "cache", "import kernel; kernel.doubled(21); print(0)"
    hits(folder, code=once, NUMBA_CACHE_DIR=cache)

    assert [hits(folder, NUMBA_CACHE_DIR=cache) for _ in range(2)] == [1, 2]


@pytest.mark.deep("files of compiled kernels that come in half")
@pytest.mark.parametrize("keep", [0, 100])
@pytest.mark.parametrize("suffix", ["nbi", "nbc"])
def test_what_comes_in_half_is_compiled_anew_and_replaced(
    folder: Path, suffix: str, keep: int
) -> None:
    cache = folder / "cache"
    hits(folder, NUMBA_CACHE_DIR=cache)
    files = list(cache.rglob(f"*.{suffix}"))
    for path in files:
        path.write_bytes(path.read_bytes()[:keep])

    assert len(files) == 2
    assert [hits(folder, NUMBA_CACHE_DIR=cache) for _ in range(2)] == [0, 2]


@pytest.mark.deep("more places for compiled kernels")
def test_a_folder_that_becomes_unwritable_does_not_stop_a_run(folder: Path) -> None:
    """Between the import and the first call, as when a quota is spent or a disk remounted."""
    lost = PROGRAM.replace(
        "import kernel\n",
        "import kernel, pathlib, shutil\n"
        "cache = pathlib.Path('cache'); shutil.rmtree(cache); cache.touch()\n",
    )

    assert hits(folder, code=lost, NUMBA_CACHE_DIR=folder / "cache") == 0


@pytest.mark.deep("processors of several kinds")
def test_processors_of_several_kinds_share_a_folder(folder: Path) -> None:
    """Each finds its own machine code there, and no other's."""
    cache = folder / "cache"

    seen = [
        hits(folder, processor=processor, NUMBA_CACHE_DIR=cache)
        for processor in ("generic", "", "generic", "")
    ]

    assert seen == [0, 0, 2, 2]


def prepare(folder: Path, processor: str) -> str:
    """Compile for a kind of processor, for all users; return the program of one of these."""
    hits(folder, processor=processor, NUMBA_CACHE_DIR=folder / "made")
    prepared = folder / "python" / "share" / "gradwire" / "kernels"
    prepared.mkdir(parents=True, exist_ok=True)
    for path in (folder / "made").rglob("*.nb[ci]"):
        path.rename(prepared / path.name)
    return f"import sys; sys.prefix = {str(folder / 'python')!r}\n{PROGRAM}"


@pytest.mark.parametrize("kind", variants(*PORTABLE))
def test_what_is_prepared_for_everyone_is_found_where_nothing_can_be_written(
    folder: Path, kind: str
) -> None:
    """As in an image with a read-only root, on another processor than that which compiled."""
    if kind not in portable_processors():
        pytest.skip(f"this processor is no {kind}")
    code = prepare(folder, kind)

    assert hits(folder, code=code) == 2
    assert hits(folder, code=code, NUMBA_CACHE_DIR=folder / "cache") == 2
    assert not list((folder / "cache").rglob("*.nbc")), "it is not kept twice"


def test_what_this_processor_cannot_run_is_not_loaded(folder: Path) -> None:
    code = prepare(folder, PORTABLE_HERE)
    older = "from gradwire_codecs.kernels import compiled; compiled.portable_processors = list\n"

    assert hits(folder, code=f"{older}{code}") == 0


@pytest.mark.deep("more places for compiled kernels")
def test_what_was_prepared_and_is_damaged_is_compiled(folder: Path) -> None:
    code = prepare(folder, PORTABLE_HERE)
    for path in (folder / "python").rglob("*.nbc"):
        path.write_bytes(path.read_bytes()[:100])

    assert hits(folder, code=code) == 0
