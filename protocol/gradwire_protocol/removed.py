"""Settings and options that no longer exist, each with what to use instead.

An upgrade must not be silent about them: a keyword of `gradwire.join`, a variable, a key of a
configuration file or an option that stands here is an error, and the error has this text. What is
removed gets a row; nothing else has to be done for it.
"""

from typing import Final

OPERATOR_REMOVED: Final = (
    "orders go over HTTP, with a token that `gradwire keygen --token FILE` makes and the master "
    "reads with --http-operator-token-file"
)

REMOVED: Final = {
    "alone_steps_max": "leave it out; a worker makes 1,000 steps without a master, and "
    "reconnect_seconds says how long it dials",
    "bytes_per_second": "leave it out; without a setting of the threshold, a worker measures its "
    "line and sends less where that is slow",
    "cipher": "leave it out; it is the faster one on each machine",
    "clip_steps": "leave it out; nothing of a change is cut off",
    "codec_threads": "leave it out; one thread encodes, as training needs the other cores",
    "congestion": "leave it out; UDP has BBR, TCP its own control, and the master's link_rate says "
    "what a known link carries",
    "datagram_bytes": "leave it out; datagrams begin with 1,400 bytes",
    "datagram_bytes_max": "leave it out; datagrams grow up to what the path carries",
    "deny_file": "use --deny NAME for a master that starts, and `gradwire operate deny NAME` for "
    "one that runs",
    "digest_seconds": "leave it out; damage is looked for every 5 seconds, and less often where "
    "that takes long",
    "initial_threshold": "leave it out, the first change says it; threshold= takes a policy with "
    "one, as in gradwire_codecs.DensityBand(1e-4, 1e-2, initial=1e-4)",
    "leave_timeout_seconds": "leave it out; close() waits for 10 seconds at most, and "
    "finish_timeout_seconds is the limit of finish()",
    "loop": "leave it out; it is uvloop where that is installed, and else asyncio's own",
    "outlier_policy": "use outliers: 'warn', the default, counts them, and 'quarantine' keeps the "
    "updates of their worker aside",
    "processes": "a master is one process; start another master for another run",
    "public_metrics": "use http_token_file; Prometheus sends the token with credentials_file",
    "quiet": "use log_level='warning'",
    "residual_clip": "leave it out; nothing of a change is cut off. Where the residual grows, "
    "lower the learning rate or raise target_density",
    "share_optimizer_state": "leave it out; mode='averaging(every=N, optimizer_state=True)' "
    "averages the state of optimizers along with the parameters",
    "shake_up_divisor": "leave it out; a shake-up has an eighth of the threshold",
    "staleness_timeout_seconds": "leave it out; a step waits 10 seconds at most for a worker that "
    "makes none",
    "stats_file": "session.stats has all figures",
    "update_bytes": "use target_density",
    "warm_up_density": "leave it out; warm_up_steps=0 is no warm-up, and threshold= takes one of "
    "another density, as in gradwire_codecs.WarmUp(gradwire_codecs.TargetDensity(0.01), 0.2, 100)",
    "doctor --insecure": "doctor says what stops a worker; iperf3 measures a line",
    "doctor --listen": "doctor says what stops a worker; iperf3 measures a line",
    "doctor --serve": "doctor says what stops a worker; iperf3 measures a line",
    "operate --key-file": f"use --http and --token-file; {OPERATOR_REMOVED}",
    "operate --master": f"use --http and --token-file; {OPERATOR_REMOVED}",
    "estimate --codec-threads": "leave it out; the formulas are for one thread",
    "estimate --costs": "leave it out; the formulas have the costs of one processor",
    "estimate --link-up": "use --link, the rate of the master's line",
    "estimate --master-link": "use --link, the rate of the master's line",
    "estimate --measure": "time a step of the script, and use --step-seconds",
    "estimate --measure-seconds": "time a step of the script, and use --step-seconds",
    "estimate --script": "time a step of the script, and use --step-seconds",
    "run --one-gpu-each": "use torch.cuda.set_device(int(os.environ['LOCAL_RANK'])) in the script",
}
"""By the name of the setting, ``link_rate`` for ``--link-rate`` and ``GRADWIRE_LINK_RATE``. An
option of one command alone stands here as ``estimate --costs``."""


def removal_of(name: str, command: str | None = None) -> str | None:
    """Return what to say of a name that is unknown; None if it never existed.

    Parameters
    ----------
    name : str
        As the user wrote it: ``link_rate``, ``--link-rate`` or ``GRADWIRE_LINK_RATE``.
    command : str or None
        The command whose option it would be.
    """
    bare = name.removeprefix("GRADWIRE_").lower().lstrip("-").replace("-", "_")
    instead = REMOVED.get(f"{command} {name}") or REMOVED.get(bare)
    return instead and f"removed: {instead}"
