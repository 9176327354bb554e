"""The TOML configuration file, and checks for unknown names in it and in the environment.

Master and workers may share one file and one environment, so each side knows the names that the
other side reads, and does not warn of them.
"""

import tomllib
from collections.abc import Collection, Iterable, Mapping
from difflib import get_close_matches
from pathlib import Path
from typing import Any, Final

from gradwire_protocol import UsageError
from gradwire_protocol.removed import removal_of

PREFIX: Final = "GRADWIRE_"


def _names(text: str) -> frozenset[str]:
    return frozenset(text.split())


SESSION_SETTINGS: Final = _names(
    """
    averaged_buffers buffer_steps connect_timeout_seconds density_band feedback
    finish_residual finish_timeout_seconds idle_timeout_seconds join_timeout_seconds key key_file
    log_histograms_every log_level master mode momentum on_lost quantum rank reconnect_seconds run
    scale shake_up_steps share_buffers staleness_bound start_timeout_seconds target_density
    threshold transport warm_up_steps warm_up_workers workers
    """
)
"""Keys of the table ``[session]``, and environment variables of a worker."""

MASTER_SETTINGS: Final = _names(
    """
    advertise announce announce_auth_file checkpoint checkpoint_keep checkpoint_seconds
    conflation_mib_max
    deny drain_seconds http http_operator_token_file http_token_file
    idle_timeout_seconds insecure key_file link_rate listen mode network new_run
    outlier_norm_multiple outliers parameters_max
    reassembly_mib_max recovery_seconds rejoin_seconds relay_backlog_mib_max resume run
    runs_max
    slow_seconds standby standby_of takeover_seconds tensorboard transport update_log_mib_max
    update_rate_max workers_max
    """
)
"""Keys of the table ``[master]``, and environment variables of a master."""

TABLES: Final = {"session": SESSION_SETTINGS, "master": MASTER_SETTINGS}

VARIABLES_ONLY: Final = frozenset({"config", "ip", "launched", "log_format", "token_file"})
"""Settings that are read from the environment only."""


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """Return what to append to a message about an unknown name; nothing where nothing is like it.

    That is what to use instead of a removed one, and else the nearest known name as a question.
    """
    removal = removal_of(name)
    if removal is not None:
        return f" ({removal})"
    nearest = get_close_matches(name, sorted(known), n=1)
    return f" (did you mean {nearest[0]}?)" if nearest else ""


def unknown_variables(environ: Mapping[str, str]) -> str | None:
    """Return a warning about variables with our prefix that neither worker nor master reads.

    Empty variables count as not set.

    Raises
    ------
    UsageError
        If one of them was removed: somebody has relied on it.
    """
    known = {PREFIX + name.upper() for name in SESSION_SETTINGS | MASTER_SETTINGS | VARIABLES_ONLY}
    unknown = sorted(
        name for name in environ if name.startswith(PREFIX) and environ[name] and name not in known
    )
    if not unknown:
        return None
    named = ", ".join(name + did_you_mean(name, known) for name in unknown)
    said = f"nothing reads these variables of the environment: {named}"
    if any(removal_of(name) for name in unknown):
        raise UsageError(said)
    return said


def unknown_names(names: Iterable[str], known: Collection[str]) -> str:
    """Return unknown settings as text for an error, each with the nearest known setting."""
    return ", ".join(name + did_you_mean(name, known) for name in sorted(names))


def read_table(path: Path, table: str) -> tuple[dict[str, Any], str | None]:
    """Return a table of a TOML file, and a warning about unknown tables or None.

    `table` is one of `TABLES`; it is empty if the file does not have it.

    Raises
    ------
    UsageError
        If the file cannot be read, or the table has unknown keys. The message names the file and
        the nearest setting.
    """
    try:
        found = tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:  # not TOML, or not text
        raise UsageError(f"configuration file {str(path)!r}: {error}") from None
    settings = found.get(table, {})
    if not isinstance(settings, dict):
        raise UsageError(f"configuration file {str(path)!r}: {table!r} is not a table")
    unknown = settings.keys() - TABLES[table]
    if unknown:
        said = ", ".join(f"{name}{_advice(name, table)}" for name in sorted(unknown))
        raise UsageError(f"configuration file {str(path)!r}: unknown settings of [{table}]: {said}")
    strange = sorted(found.keys() - TABLES.keys())
    if not strange:
        return settings, None
    said = ", ".join(
        name + (did_you_mean(name, TABLES) if isinstance(found[name], dict) else _advice(name))
        for name in strange
    )
    return settings, (
        f"configuration file {str(path)!r}: nothing reads {said}; "
        "the tables are [session] and [master]"
    )


def _advice(name: str, table: str | None = None) -> str:
    """Return the table that an unknown key belongs into, or the nearest spelling."""
    owners = [owner for owner, known in TABLES.items() if name in known]
    if owners:
        return f" (it belongs into [{owners[0]}])"
    known = TABLES[table] if table else SESSION_SETTINGS | MASTER_SETTINGS
    return did_you_mean(name, known)
