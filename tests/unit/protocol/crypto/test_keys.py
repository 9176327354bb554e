"""Keys: what follows from a run key, for whom, and that nobody gets more than his own."""

from itertools import combinations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gradwire_protocol import Keyring, Role, RunKey, UsageError, WorkerKey
from gradwire_protocol.crypto.keys import (
    FINGERPRINT_BYTES,
    KEY_ID_BYTES,
    NAME_BYTES_MAX,
    SECRET_BYTES,
    IssuingKey,
    KeyFormatError,
    check_name,
    parse_keys,
)
from gradwire_protocol.limits import RUN_KEYS_MAX
from support.wording import naming

SECRETS = st.binary(min_size=SECRET_BYTES, max_size=SECRET_BYTES)
ROLES = st.sampled_from(Role)
NAMES = st.text(
    st.characters(codec="utf-8", exclude_categories=["Z", "C"], exclude_characters=":,"),
    min_size=1,
    max_size=NAME_BYTES_MAX // 4,
)

RUN_KEY = RunKey(bytes(range(SECRET_BYTES)))
OTHER = RunKey(b"o" * SECRET_BYTES)
KEY = RUN_KEY.worker_key("worker-1")


# What follows from what.


@given(secret=SECRETS, name=NAMES, role=ROLES)
def test_a_worker_key_is_always_the_same_and_can_be_made_anew_from_its_id(
    secret: bytes, name: str, role: Role
) -> None:
    run_key = RunKey(secret)

    key = run_key.worker_key(name, role)

    assert key == RunKey(secret).worker_key(name, role)
    issuing_key = run_key.issuing_key(role)
    assert key == issuing_key.worker_key(name)
    assert key.secret == issuing_key.secret_of(key.key_id)
    assert key.key_id == issuing_key.key_id(name)
    assert key.key_id[0] == role
    assert key.key_id[1 : 1 + FINGERPRINT_BYTES] == run_key.fingerprint
    assert len(key.key_id) == KEY_ID_BYTES


def test_no_two_names_roles_or_runs_have_an_id_or_a_secret_in_common() -> None:
    keys = [run.worker_key(name, role)
            for run in (RUN_KEY, OTHER) for name in ("a", "b", "ab") for role in Role]  # fmt: skip

    for one, other in combinations(keys, 2):
        assert one.key_id != other.key_id
        assert one.secret != other.secret


def test_the_keys_for_different_purposes_differ() -> None:
    derived = [RUN_KEY.reset_key(""), RUN_KEY.reset_key("b"), KEY.secret, OTHER.reset_key("b")]

    assert len(set(derived)) == len(derived)
    assert RUN_KEY.reset_key("b") == RunKey(bytes(range(SECRET_BYTES))).reset_key("b")


def test_the_derivation_is_the_documented_one() -> None:
    """Changing it would make every key that was handed out worthless."""
    assert RUN_KEY.fingerprint.hex() == "731fae"
    issued = RUN_KEY.issuing_key(Role.WORKER).format()
    assert (
        issued == "gradwire-issuing-key:worker:cx-ug3w30mqOfXc6BLZQ_oItZKuieyKkG50wC1j3LeQigL9mW6Q2"
    )
    assert KEY.key_id.hex() == "01731fae76e684f28c1c1137285bc918"
    assert KEY.secret.hex() == "2037764a2495ba98e6f1178634fdcd86e8e5f4d01992b03b0f2599e25afd6144"


def test_run_keys_are_equal_where_their_secrets_are() -> None:
    same = RunKey(bytes(range(SECRET_BYTES)))

    assert same == RUN_KEY
    assert hash(RUN_KEY) == hash(same)
    assert RUN_KEY != OTHER


def test_nothing_secret_is_shown() -> None:
    identity = Keyring([RUN_KEY]).identity(KEY.key_id, KEY.name)

    issuing_key = RUN_KEY.issuing_key(Role.WORKER)
    shown = f"{RUN_KEY!r} {RUN_KEY} {KEY!r} {KEY} {identity!r} {issuing_key!r} {issuing_key}"

    assert RUN_KEY.fingerprint.hex() in shown
    assert "worker-1" in shown
    for secret in (bytes(range(SECRET_BYTES)), KEY.secret):
        assert secret.hex() not in shown
        assert repr(secret)[2:-1] not in shown


# Issuing keys.


@given(secret=SECRETS, name=NAMES, role=ROLES)
def test_an_issuing_key_makes_the_keys_of_its_role_as_text_too(
    secret: bytes, name: str, role: Role
) -> None:
    issuing_key = RunKey(secret).issuing_key(role)

    read = parse_keys(f"# of a cluster\n{issuing_key.format()}\n")

    assert read == issuing_key
    assert isinstance(read, IssuingKey)
    assert read.worker_key(name) == RunKey(secret).worker_key(name, role)
    assert hash(read) == hash(issuing_key)


def test_who_has_the_issuing_key_of_a_role_cannot_pass_for_another_role() -> None:
    """Not by the id of an observer's key, for which it computes another secret."""
    issuing_key, keyring = RUN_KEY.issuing_key(Role.WORKER), Keyring([RUN_KEY])
    observer = RUN_KEY.worker_key("alice", Role.OBSERVER)

    assert keyring.secret_of(observer.key_id) == observer.secret
    assert issuing_key.secret_of(observer.key_id) != observer.secret


@pytest.mark.parametrize(("fingerprint", "secret"), [(2, 32), (4, 32), (3, 31), (3, 0)])
def test_an_issuing_key_has_a_fingerprint_and_a_secret(fingerprint: int, secret: int) -> None:
    with pytest.raises(KeyFormatError, match=naming("issuing key", fingerprint, secret)):
        IssuingKey(Role.WORKER, bytes(fingerprint), bytes(secret))


# What is no key.


@pytest.mark.parametrize("size", [0, 31, 33])
def test_a_secret_has_32_bytes(size: int) -> None:
    with pytest.raises(KeyFormatError, match=naming("run key", size, 32)):
        RunKey(bytes(size))
    with pytest.raises(KeyFormatError, match=naming("worker key", size, 32)):
        WorkerKey("name", Role.WORKER, b"\1" + bytes(15), bytes(size))


@pytest.mark.parametrize("key_id", [b"\2" + bytes(15), b"\1" + bytes(14), b"\1" + bytes(16)])
def test_the_id_of_a_key_fits_its_role(key_id: bytes) -> None:
    with pytest.raises(KeyFormatError, match=naming("role")):
        WorkerKey("name", Role.WORKER, key_id, bytes(32))


@pytest.mark.parametrize(
    ("name", "named"),
    [
        ("", ("name", 0, 1, 63)),
        ("n" * 64, ("name", 64, 1, 63)),
        ("ö" * 32, ("name", 64, 1, 63)),
        ("a b", ("'a b'", "colons", "commas", "spaces")),
        ("a,b", ("'a,b'", "colons", "commas", "spaces")),
        ("a:b", ("'a:b'", "colons", "commas", "spaces")),
        ("a\u00a0b", (r"'a\xa0b'", "colons", "commas", "spaces")),
        ("a\n", (r"'a\n'", "colons", "commas", "spaces")),
        ("\u202e", (r"'\u202e'", "printable")),
    ],
)
def test_a_name_that_nobody_can_have_is_refused(name: str, named: tuple[object, ...]) -> None:
    for make in (check_name, RUN_KEY.worker_key, lambda name: Keyring([RUN_KEY], [name])):
        with pytest.raises(KeyFormatError, match=naming(*named)):
            make(name)


# Whom a keyring lets in.


def test_a_key_of_any_accepted_run_key_is_known_and_gives_its_owner_away() -> None:
    keyring = Keyring([OTHER, RUN_KEY])

    for run_key in (RUN_KEY, OTHER):
        for role in Role:
            key = run_key.worker_key("name", role)
            assert keyring.knows(key.key_id)
            assert keyring.secret_of(key.key_id) == key.secret
            identity = keyring.identity(key.key_id, "name")
            assert identity is not None
            assert (identity.name, identity.role) == ("name", role)
            assert keyring.admits(identity)


def test_a_key_of_another_run_is_not() -> None:
    keyring = Keyring([OTHER])

    assert not keyring.knows(KEY.key_id)
    assert keyring.secret_of(KEY.key_id) is None
    assert keyring.identity(KEY.key_id, KEY.name) is None


@pytest.mark.parametrize("role", [0, max(Role) + 1, 255])
def test_a_role_that_there_is_not_is_nobodys(role: int) -> None:
    key_id = bytes([role]) + KEY.key_id[1:]

    assert not Keyring([RUN_KEY]).knows(key_id)
    assert Keyring([RUN_KEY]).identity(key_id, KEY.name) is None


@given(name=st.text(max_size=80))
def test_a_name_that_is_not_the_keys_identifies_nobody(name: str) -> None:
    identity = Keyring([RUN_KEY]).identity(KEY.key_id, name)

    assert (identity is None) == (name != KEY.name)


def test_who_changes_the_role_in_his_key_id_knows_no_secret_for_it() -> None:
    promoted = bytes([Role.OBSERVER]) + KEY.key_id[1:]
    keyring = Keyring([RUN_KEY])

    assert keyring.secret_of(promoted) != KEY.secret
    assert keyring.identity(promoted, KEY.name) is None


def test_who_is_denied_or_comes_with_a_retired_key_is_not_admitted() -> None:
    identity = Keyring([RUN_KEY]).identity(KEY.key_id, KEY.name)
    assert identity is not None

    assert not Keyring([RUN_KEY], denied=[KEY.name]).admits(identity)
    assert not Keyring([OTHER]).admits(identity)
    assert Keyring([OTHER, RUN_KEY], denied=["worker-2"]).admits(identity)


@pytest.mark.parametrize("count", [0, RUN_KEYS_MAX + 1])
def test_a_keyring_has_one_run_key_to_eight(count: int) -> None:
    run_keys = [RunKey(bytes([n] * 32)) for n in range(count)]

    with pytest.raises(UsageError, match=naming("run keys", count, 1, RUN_KEYS_MAX)):
        Keyring(run_keys)


def test_a_keyring_has_every_run_key_once() -> None:
    with pytest.raises(UsageError, match=naming("run keys", "equal")):
        Keyring([RUN_KEY, RUN_KEY])


# Files.


@given(secrets=st.lists(SECRETS, min_size=1, max_size=RUN_KEYS_MAX, unique=True))
def test_run_keys_are_read_as_they_were_written(secrets: list[bytes]) -> None:
    keys = [RunKey(secret) for secret in secrets]

    assert parse_keys("\n".join(key.format() for key in keys)) == keys


@given(secret=SECRETS, name=NAMES, role=ROLES)
def test_a_worker_key_is_read_as_it_was_written(secret: bytes, name: str, role: Role) -> None:
    key = RunKey(secret).worker_key(name, role)

    assert parse_keys(f"# of {name}\n\n  {key.format()}  \n") == key


def refusal_of(text: str) -> str | None:
    """Return what is said where a text is refused as a key file."""
    try:
        parse_keys(text)
    except KeyFormatError as error:
        return str(error)
    return None


@given(at=st.integers(0, 90), character=st.characters(codec="ascii"), name=NAMES)
def test_a_damaged_line_is_refused_without_repeating_it(at: int, character: str, name: str) -> None:
    key = RUN_KEY.worker_key(name)
    for line in (RUN_KEY.format(), key.format()):
        secret = line.rpartition(":")[2]
        begins = len(line) - len(secret)
        place = begins + at % len(secret)
        damaged = line[:place] + character + line[place + 1 :]
        says = refusal_of(damaged)
        if says is None:
            # Bits of the last character that mean nothing, or nothing has changed.
            assert parse_keys(damaged) in ([RUN_KEY], key)
        else:
            assert secret[:8] not in says
            assert damaged[begins : begins + 8] not in says


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("", ("0 run keys", "0 worker keys")),
        ("# nothing", ("0 run keys", "0 worker keys")),
        (f"{KEY.format()}\n{KEY.format()}", ("0 run keys", "2 worker keys")),
        (f"{KEY.format()}\n{RUN_KEY.format()}", ("1 run keys", "1 worker keys")),
        ("\n".join(RunKey(bytes([n] * 32)).format() for n in range(9)), ("9 run keys", 8)),
        ("\nwhat is this", ("line 2", "`gradwire keygen`")),
        (KEY.format().replace(":worker:", ":king:"), ("line 1", "role")),
        ("gradwire-run-key:A", ("line 1", "damaged")),
        ("gradwire-run-key:ö", ("line 1", "damaged")),
        (KEY.format().replace("worker-1", "n" * 64), ("name", 64)),
        (KEY.format().replace(":worker:", ":operator:"), ("--http-operator-token-file",)),
    ],
)
def test_a_file_that_is_none_is_refused(text: str, named: tuple[object, ...]) -> None:
    with pytest.raises(KeyFormatError, match=naming(*named)):
        parse_keys(text)
