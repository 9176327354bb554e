"""Checks of this machine: versions, processor, compiled kernels, and its support for UDP."""

import os
import platform
import sys
from collections.abc import Collection, Iterator
from importlib.metadata import version
from pathlib import Path
from typing import Final

from gradwire.cli.doctor.checks import Check, State
from gradwire.settings.credentials import fastest_suite
from gradwire_protocol import Suite
from gradwire_protocol.wire.packets import VERSION
from gradwire_udp import Features, open_socket
from gradwire_udp.udp.kernel_features import EVERYTHING, switch_on
from gradwire_udp.udp.socket_buffers import BUFFER_BYTES, granted_buffers, sysctl_line

CPUINFO: Final = Path("/proc/cpuinfo")

VECTOR_FLAGS: Final = ("avx512f", "avx2", "asimd", "neon")
"""Vector instructions, widest first: these make the compiled kernels fast."""

MACHINE_CODE: Final = "*.nbc"
"""Pattern of numba's files of machine code."""


def machine_checks() -> Iterator[Check]:
    """Check this machine."""
    yield judge_versions(version("gradwire"), sys.version.split()[0])
    flags = _processor_flags(CPUINFO.read_text("utf-8")) if CPUINFO.exists() else frozenset()
    yield judge_processor(flags, os.cpu_count() or 1, fastest_suite())
    yield _cache()
    with open_socket(("127.0.0.1", 0)) as sock:
        yield judge_kernel(switch_on(sock, EVERYTHING), sys.platform)
        yield judge_buffers(*granted_buffers(sock, BUFFER_BYTES))


def judge_versions(release: str, python: str) -> Check:
    """Say which versions run here."""
    return Check(
        "version",
        State.OK,
        f"gradwire {release}, protocol {VERSION}, Python {python}, {platform.system()} "
        f"{platform.release()}",
        figures={"gradwire": release, "protocol": VERSION, "python": python},
    )


def judge_processor(flags: Collection[str], cores: int, suite: Suite) -> Check:
    """Say how many cores there are, which vector instructions, and which cipher is faster."""
    vectors = [flag for flag in VECTOR_FLAGS if flag in flags]
    sealing = "AES-256-GCM" if suite is Suite.AES else "ChaCha20-Poly1305"
    figures = {"cores": cores, "vectors": vectors, "cipher": sealing}
    widest = vectors[0] if vectors else "no known vector instructions"
    text = f"{cores} cores, {widest}, seals by {sealing}"
    check = Check("processor", State.OK, text, figures=figures)
    if cores < 2:
        return check.slow(
            "training and network share one core: give this machine or container a second one"
        )
    if flags and not vectors:
        return check.slow(
            "the search for what to send takes several times as long: expose the processor's AVX2 "
            "to this virtual machine (for QEMU, -cpu host)"
        )
    return check


def judge_cache(folder: str | None, files: int) -> Check:
    """Say whether the compiled kernels are in a folder, that of this user or that of all."""
    figures = {"folder": folder, "files": files}
    check = Check("kernels", State.OK, f"{files} compiled in {folder}", figures=figures)
    if folder is None:
        return check.slow(
            "set NUMBA_CACHE_DIR to a writable folder, or run `gradwire warm-up --system` as the "
            "owner of this Python",
            text="no folder for machine code is writable: every process compiles for itself",
        )
    if not files:
        return check.slow(
            "gradwire warm-up",
            text=f"none are compiled yet in {folder}: the first join takes some 20 s longer",
        )
    return check


def judge_kernel(features: Features, system: str) -> Check:
    """Say which offloads for UDP the operating system has."""
    has = {"GSO": features.gso, "GRO": features.gro}
    missing = " and ".join(name for name, there in has.items() if not there)
    figures = {"gso": features.gso, "gro": features.gro, "ecn": features.ecn}
    check = Check("kernel", State.OK, "UDP with GSO and GRO", figures=figures)
    if not missing:
        return check
    return check.slow(
        "use Linux 5.0 or newer, and no sandbox such as gVisor"
        if system == "linux"
        else "only Linux has them; up to some 100 Mbit/s they are not needed",
        text=f"UDP without {missing}: every datagram costs a system call",
    )


def judge_buffers(receive: int, send: int) -> Check:
    """Say whether the socket buffers that the system grants are large enough."""
    figures = {"receive_bytes": receive, "send_bytes": send, "wanted_bytes": BUFFER_BYTES}
    text = f"{receive / 2**20:.3g} MiB to receive, {send / 2**20:.3g} MiB to send"
    check = Check("buffers", State.OK, text, figures=figures)
    if min(receive, send) >= BUFFER_BYTES:
        return check
    return check.slow(
        sysctl_line(BUFFER_BYTES),
        text=f"{text}, and {BUFFER_BYTES / 2**20:.3g} are wanted: datagrams are lost at high rates",
    )


def _cache() -> Check:
    # Importing it takes as long as all other checks.
    from gradwire_codecs.kernels.compiled import cache_folder, prepared_folder

    own = cache_folder()
    for folder in (own, prepared_folder()):
        files = 0 if folder is None else sum(1 for _ in Path(folder).glob(MACHINE_CODE))
        if files:
            return judge_cache(folder, files)
    return judge_cache(own, 0)


def _processor_flags(text: str) -> frozenset[str]:
    """Return the flags of the first processor in ``/proc/cpuinfo``."""
    for line in text.splitlines():
        name, _, flags = line.partition(":")
        if name.strip() in ("flags", "Features"):
            return frozenset(flags.split())
    return frozenset()
