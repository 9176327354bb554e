"""``gradwire keygen``: makes the keys of a run and of its workers, and changes a run's key.

Paths of written files go to stdout, the next steps to stderr, and keys into their files alone.
"""

import os
from collections.abc import Sequence
from pathlib import Path
from secrets import token_urlsafe
from typing import Annotated, Final, Literal

import typer

from gradwire.errors import UsageError
from gradwire_protocol.crypto.keys import SECRET_BYTES, IssuingKey, Role, RunKey
from gradwire_protocol.limits import RUN_KEYS_MAX
from gradwire_udp.files.keys import read_keys, read_run_keys, replace_key, write_key

RUN_KEY_FILE: Final = Path("run.key")
KEY_SUFFIX: Final = ".key"

TOKEN_BYTES: Final = 32
"""Random bytes of an HTTP token."""

READ_AGAIN: Final = (
    "have the master read it again: kill -HUP its process, or systemctl reload its service"
)


def keygen(
    path: Annotated[
        Path | None,
        typer.Argument(
            metavar="[PATH]",
            help="The run key file to make; run.key by default.",
            show_default=False,
        ),
    ] = None,
    *,
    worker: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME",
            help="Make the key of a worker with this name. Can be given several times.",
        ),
    ] = None,
    issuing: Annotated[
        Path | None,
        typer.Option(
            metavar="PATH",
            help="Make a key that makes the keys of one role and no others: for a scheduler or "
            "driver that starts workers.",
        ),
    ] = None,
    source: Annotated[
        Path | None,
        typer.Option(
            "--from",
            metavar="PATH",
            help="The file with the run key, or for --worker with an issuing key, to derive from.",
        ),
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option(
            metavar="PATH",
            help="Where a worker's key goes: a file, or a folder that exists. NAME.key by default.",
        ),
    ] = None,
    role: Annotated[
        Literal["worker", "observer"],
        typer.Option(
            help="What the holder of the key may do: take part in the training, or only receive."
        ),
    ] = "worker",
    token: Annotated[
        Path | None,
        typer.Option(
            metavar="PATH",
            help="Make a token for HTTP, with which people look at the master or give it orders.",
        ),
    ] = None,
    rotate: Annotated[
        Path | None,
        typer.Option(
            metavar="PATH",
            help="Put a new run key first into this file; the old ones stay valid.",
        ),
    ] = None,
    retire: Annotated[
        Path | None,
        typer.Option(metavar="PATH", help="Leave only the newest run key in this file."),
    ] = None,
) -> None:
    """Make a run key, keys of workers from it, or a token for HTTP.

    A run key stays with the master. Workers' keys are derived from it, one for each name: a worker
    can neither make other keys nor pass for another worker. An issuing key makes the keys of one
    role. A token is for HTTP alone. Files get mode 0600, and none is overwritten.
    """
    names = ("PATH", "--worker", "--issuing", "--token", "--rotate", "--retire")
    asked = zip(names, (path, worker, issuing, token, rotate, retire), strict=True)
    given = [name for name, value in asked if value]
    if len(given) > 1:
        raise UsageError(f"{' and '.join(given)}: one thing at a time")
    if issuing is not None:
        _make_issuing_key(source, Role[role.upper()], issuing, out)
        return
    if worker:
        _make_worker_keys(source, worker, Role[role.upper()], out)
        return
    if source is not None or out is not None:
        raise UsageError("--from goes with --worker NAME or --issuing PATH, --out with --worker")
    if token is not None:
        _make_token(token)
    elif rotate is not None:
        _rotate(rotate)
    elif retire is not None:
        _retire(retire)
    else:
        _make_run_key(path or RUN_KEY_FILE)


def _make_run_key(path: Path) -> None:
    write_key(path, _text([_new_run_key()]))
    typer.echo(path)
    _say(f"{path} is the key of a run. It stays with the master, which takes it by")
    _say(f"  gradwire master --key-file {path} --listen 0.0.0.0:40123")
    _say("Workers need keys that are derived from it, and find theirs by GRADWIRE_KEY_FILE:")
    _say(f"  gradwire keygen --worker NAME --from {path}")


def _make_token(path: Path) -> None:
    write_key(path, token_urlsafe(TOKEN_BYTES) + "\n")
    typer.echo(path)
    _say(f"{path} is a token for HTTP. For people who give orders, start the master with")
    _say(f"  gradwire master --http-operator-token-file {path}")
    _say("For people who only look, --http-token-file takes it. Commands take the file:")
    _say(f"  gradwire operate status --token-file {path}")


def _make_issuing_key(source: Path | None, role: Role, path: Path, out: Path | None) -> None:
    if source is None:
        raise UsageError(f"--issuing {path}: name the run key to derive it from by --from PATH")
    if out is not None:
        raise UsageError(f"--out goes with --worker NAME; the issuing key goes to {path}")
    key = read_run_keys(source)[0].issuing_key(role)
    kind = role.name.lower()
    write_key(path, f"# gradwire: makes the keys of role {kind}, and no others.\n{key.format()}\n")
    typer.echo(path)
    _say(f"{path} makes the keys of role {kind}, and no others. Each process that is given it by")
    _say("GRADWIRE_KEY_FILE derives a key of its own; one for a name is made by")
    _say(f"  gradwire keygen --worker NAME --from {path}")


def _issuing_key(source: Path, role: Role) -> IssuingKey:
    """Return what makes the keys of a role, from a run key or an issuing key."""
    keys = read_keys(source)
    if isinstance(keys, IssuingKey):
        if keys.role is not role:
            made, asked = keys.role.name.lower(), role.name.lower()
            raise UsageError(
                f"{source} makes keys of role {made}, not {asked}: say --role {made}, or derive "
                "from the run key"
            )
        return keys
    return read_run_keys(source)[0].issuing_key(role)


def _make_worker_keys(
    source: Path | None, names: Sequence[str], role: Role, out: Path | None
) -> None:
    if source is None:
        raise UsageError(f"--worker {names[0]}: name the run key to derive it from by --from PATH")
    issuing_key = _issuing_key(source, role)
    keys = [issuing_key.worker_key(name) for name in names]
    places = _places(names, out)
    for key, place in zip(keys, places, strict=True):
        write_key(place, f"# gradwire: key of {key.name}, {role.name.lower()}.\n{key.format()}\n")
        typer.echo(place)
    _say("copy each to its worker, over something safe such as scp, and set there")
    _say("  GRADWIRE_KEY_FILE=NAME.key")


def _places(names: Sequence[str], out: Path | None) -> list[Path]:
    """Return the files for keys; refuse files that exist, or names that make no file name."""
    if out is not None and not out.is_dir():
        if len(names) > 1:
            raise UsageError(f"--out {out}: for {len(names)} keys it has to be a folder")
        return [out]
    for name in names:
        if "/" in name or name.startswith("."):
            raise UsageError(f"name {name!r} makes no file name: name the file by --out PATH")
    if len(set(names)) != len(names):
        twice = next(name for name in names if names.count(name) > 1)
        raise UsageError(f"--worker {twice}: the name was given twice")
    places = [(out or Path()) / f"{name}{KEY_SUFFIX}" for name in names]
    there = [str(place) for place in places if place.exists()]
    if there:  # checked before the first is written, so that all are written or none
        raise UsageError(f"{', '.join(there)}: exists already, and is not overwritten")
    return places


def _rotate(path: Path) -> None:
    keys = read_run_keys(path)
    if len(keys) >= RUN_KEYS_MAX:
        raise UsageError(
            f"{path} has {len(keys)} run keys, which is the limit: first retire all but the newest "
            f"by gradwire keygen --retire {path}"
        )
    replace_key(path, _text([_new_run_key(), *keys]))
    typer.echo(path)
    _say(f"{path} has {len(keys) + 1} run keys now, and a master accepts all of them. Next steps:")
    _say(f"1. {READ_AGAIN}")
    _say(f"2. make new keys for the workers: gradwire keygen --worker NAME --from {path}")
    _say(f"3. when all workers have new keys: gradwire keygen --retire {path}")


def _retire(path: Path) -> None:
    keys = read_run_keys(path)
    if len(keys) == 1:
        typer.echo(path)
        _say(f"{path} has one run key only: there is nothing to retire")
        return
    replace_key(path, _text(keys[:1]))
    typer.echo(path)
    _say(f"{path} has its newest run key only; {len(keys) - 1} retired. Next step:")
    _say(f"{READ_AGAIN}. It then closes the connections of workers with older keys.")


def _new_run_key() -> RunKey:
    return RunKey(os.urandom(SECRET_BYTES))


def _text(keys: Sequence[RunKey]) -> str:
    lines = ["# gradwire: key of a run. It makes any worker's key: keep it secret."]
    if len(keys) > 1:
        lines.append("# The newest comes first. Leave only that: gradwire keygen --retire FILE")
    for key in keys:
        lines += [f"# fingerprint {key.fingerprint.hex()}", key.format()]
    return "\n".join(lines) + "\n"


def _say(line: str) -> None:
    typer.echo(line, err=True)
