"""Verdicts: what a finding means, and what to do where it is not ok."""

import platform
from collections.abc import Sequence
from importlib.metadata import version
from typing import Final

from gradwire.cli.doctor.checks import Check, State
from gradwire.cli.doctor.probes import Answer, Destination, Reached
from gradwire_protocol import CloseCode, IssuingKey, RunKey, WorkerKey
from gradwire_protocol.crypto.keys import FINGERPRINT_BYTES
from gradwire_protocol.wire.packets import VERSION
from gradwire_udp import show_address
from gradwire_udp.udp.socket_buffers import BUFFER_BYTES, sysctl_line

RTT_SECONDS_MAX: Final = 0.1
SPREAD_SECONDS_MIN: Final = 0.005
"""A smaller spread is due to the two processes, not to the path."""


def versions() -> Check:
    """Say which versions run here."""
    release, python = version("gradwire"), platform.python_version()
    system = f"{platform.system()} {platform.release()}"
    text = f"gradwire {release}, protocol {VERSION}, Python {python}, {system}"
    figures = {"gradwire": release, "protocol": VERSION, "python": python}
    return Check("version", State.OK, text, figures=figures)


def judge_buffers(receive: int, send: int) -> Check:
    """Say whether the socket buffers that the system grants are large enough."""
    figures = {"receive_bytes": receive, "send_bytes": send, "wanted_bytes": BUFFER_BYTES}
    text = f"{receive / 2**20:.3g} MiB to receive, {send / 2**20:.3g} MiB to send"
    if min(receive, send) >= BUFFER_BYTES:
        return Check("buffers", State.OK, text, figures=figures)
    text += f", and {BUFFER_BYTES / 2**20:.3g} are wanted: datagrams are lost at high rates"
    return Check("buffers", State.SLOW, text, sysctl_line(BUFFER_BYTES), figures)


def judge_key(key: WorkerKey | IssuingKey | RunKey | None) -> Check:
    """Say which name, role and run the key has."""
    if key is None:
        return Check("key", State.OK, "none: packets are not sealed", figures={"role": None})
    if isinstance(key, WorkerKey):
        run, role = key.key_id[1 : 1 + FINGERPRINT_BYTES].hex(), key.role.name.lower()
        text, name = f"of {role} {key.name}, run {run}", key.name
    elif isinstance(key, IssuingKey):
        run, role = key.fingerprint.hex(), key.role.name.lower()
        text, name = f"issuing key of role {role}, run {run}", None
    else:
        run, role = key.fingerprint.hex(), "run"
        text, name = f"run key of run {run}", None
    return Check("key", State.OK, text, figures={"run": run, "role": role, "name": name})


def judge_names(text: str, destinations: Sequence[Destination]) -> Check:
    """Say which addresses a name has."""
    shown = [show_address(address) for _, address in destinations]
    return Check("name", State.OK, f"{text} is {', '.join(shown)}", figures={"addresses": shown})


def judge_reached(reached: Sequence[Reached], *, has_key: bool) -> Check:
    """Say which transport a master answers, at the best of its addresses."""
    best = best_of(reached)
    where = show_address(best.destination[1])
    silent = [show_address(r.destination[1]) for r in reached if r.transport is None]
    figures = {"address": where, "transport": best.transport, "silent": silent, "tcp": best.port}
    beside = f" (nothing at {', '.join(silent)})" if silent and best.transport else ""
    if best.transport == "udp":
        return Check("port", State.OK, f"UDP is answered at {where}{beside}", figures=figures)
    if best.transport == "tcp":
        text = f"only TCP is answered at {where}, UDP is not{beside}"
        remedy = (
            "let UDP pass to this port in both directions, in the firewall, the security group and "
            "the container's -p PORT:PORT/udp"
        )
        return Check("port", State.SLOW, text, remedy, figures)
    answers = [best.udp] if best.tcp is None else [best.udp, best.tcp]
    other = next((a.reason for a in answers if a.code == CloseCode.VERSION), None)
    if other is not None:
        text = f"{where} speaks protocol version {other}, this gradwire {VERSION}"
        remedy = "install the same version of gradwire on both"
    elif best.port == "open":
        which = "with this key" if has_key else "without a key"
        text = f"something listens at TCP {where}, and answers no handshake {which}"
        remedy = (
            "the key is derived from another run key, its name is denied, the master has no key at "
            "all, or the clock here was set back: compare the run in the line `key` with that of "
            "the master's key file, and make a new key with "
            "`gradwire keygen --worker NAME --from run.key`"
            if has_key
            else "say --key-file: a master with a run key does not answer without a key. Otherwise "
            "something other than gradwire listens there"
        )
    elif best.port == "refused":
        text = f"nothing listens at TCP {where}, and UDP is not answered"
        remedy = (
            "start `gradwire master --listen 0.0.0.0:PORT --key-file run.key` there, and check the "
            "port. For a master with --transport udp, check that the key here is derived from its "
            "run key"
        )
    else:
        text = f"neither UDP nor TCP is answered at {where}"
        remedy = "ping the host, check the address, let UDP and TCP pass the firewall to this port"
    return Check("port", State.BROKEN, text, remedy, figures)


def judge_round_trip(answers: Sequence[Answer]) -> Check:
    """Say how long a round trip takes, and how much that varies."""
    seconds = sorted(a.seconds for a in answers if a.seconds is not None and a.sent == 1)
    if not seconds:
        text = f"none of {len(answers)} handshakes was answered at the first try"
        return Check("round trip", State.UNMEASURED, text)
    least, median = seconds[0], seconds[len(seconds) // 2]
    spread = seconds[(9 * len(seconds)) // 10 - (len(seconds) % 10 == 0)] - least
    figures = {"least_seconds": least, "median_seconds": median, "spread_seconds": spread}
    text = (
        f"{1e3 * median:.3g} ms, at least {1e3 * least:.3g}, nine of ten within "
        f"{1e3 * spread:.3g} more ({len(seconds)} handshakes)"
    )
    remedy = ""
    if median > RTT_SECONDS_MAX:
        remedy = "run the master closer to the workers; `gradwire estimate --rtt` says the cost"
    elif spread > max(SPREAD_SECONDS_MIN, 2 * least):
        remedy = (
            "something on the way queues, or a machine is busy: look for other traffic, Wi-Fi, or "
            "processes that take all cores"
        )
    return Check("round trip", State.SLOW if remedy else State.OK, text, remedy, figures)


def judge_loss(answers: Sequence[Answer]) -> Check:
    """Say how many datagrams of the handshakes, or answers to them, were lost."""
    sent = sum(a.sent for a in answers)
    lost = sent - sum(a.seconds is not None for a in answers)
    text, figures = f"{lost} of {sent} datagrams, there or back", {"sent": sent, "lost": lost}
    if not lost:
        return Check("loss", State.OK, text, figures=figures)
    remedy = (
        "gradwire keeps its rate up to some percent; look for a full link, Wi-Fi or a bad cable"
    )
    return Check("loss", State.SLOW, text, remedy, figures)


def best_of(reached: Sequence[Reached]) -> Reached:
    """Return the address with the best transport, then the best TCP port; the first of equals."""
    order = ("udp", "tcp", None)
    ports = ("open", "refused", "silent")
    return min(reached, key=lambda r: (order.index(r.transport), ports.index(r.port)))
