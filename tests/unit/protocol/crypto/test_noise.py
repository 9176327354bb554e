"""The handshake is that of the Noise framework, and opens for whom it should and nobody else.

`vectors/noise.json` was written by another implementation; and it takes part here as each side.
"""

import json
from pathlib import Path
from typing import Final

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gradwire_protocol import Suite
from gradwire_protocol.crypto.noise import NoiseHandshake, NotAuthenticError
from gradwire_protocol.crypto.suites import NOISE_NAMES
from support.reference_noise import ReferenceHandshake
from support.wording import naming

VECTORS: Final[list[dict[str, str]]] = json.loads(
    (Path(__file__).parent / "vectors" / "noise.json").read_text()
)
SUITES_BY_NAME: Final = {name.decode(): suite for suite, name in NOISE_NAMES.items()}
SEALED = pytest.mark.parametrize("suite", NOISE_NAMES)

KEYS = st.binary(min_size=32, max_size=32)
PAYLOADS = st.binary(max_size=200)
SECRET = b"s" * 32
PROLOGUE = b"prologue"


def pair(
    suite: Suite, *, secret: bytes = SECRET, prologue: bytes = PROLOGUE
) -> tuple[NoiseHandshake, NoiseHandshake]:
    """Return both sides of a handshake, one of which has this secret and this prologue."""
    return NoiseHandshake(suite, SECRET, PROLOGUE), NoiseHandshake(suite, secret, prologue)


def flip(data: bytes, bit: int) -> bytes:
    damaged = bytearray(data)
    damaged[bit // 8] ^= 1 << bit % 8
    return bytes(damaged)


# As others do it.


@pytest.mark.parametrize("vector", VECTORS, ids=lambda vector: vector["secret"][:8])
def test_every_byte_is_that_of_the_other_implementation(vector: dict[str, str]) -> None:
    data = {what: bytes.fromhex(text) for what, text in vector.items() if what != "name"}
    suite = SUITES_BY_NAME[vector["name"]]
    initiator, responder = (
        NoiseHandshake(suite, data["secret"], data["prologue"]) for _ in range(2)
    )

    init = initiator.write_init(data["initiator_private_key"], data["greeting"])
    greeting = responder.read_init(*init)
    accept = responder.write_accept(data["responder_private_key"], data["reply"])
    reply = initiator.read_accept(*accept)

    assert init == (data["initiator_public_key"], data["sealed_greeting"])
    assert greeting == data["greeting"]
    assert accept == (data["responder_public_key"], data["sealed_reply"])
    assert reply == data["reply"]
    assert initiator.keys == responder.keys == (data["key_there"], data["key_back"])


@given(
    suite=st.sampled_from([*NOISE_NAMES]),
    secret=KEYS,
    prologue=PAYLOADS,
    ours=KEYS,
    theirs=KEYS,
    payloads=st.tuples(PAYLOADS, PAYLOADS),
)
def test_the_other_implementation_and_ours_understand_each_other_whichever_begins(
    suite: Suite,
    secret: bytes,
    prologue: bytes,
    ours: bytes,
    theirs: bytes,
    payloads: tuple[bytes, bytes],
) -> None:
    initiator, responder = (NoiseHandshake(suite, secret, prologue) for _ in range(2))
    answering, beginning = (
        ReferenceHandshake(suite, secret, prologue, theirs, initiator=begins)
        for begins in (False, True)
    )

    assert answering.read(*initiator.write_init(ours, payloads[0])) == payloads[0]
    assert initiator.read_accept(*answering.write(payloads[1])) == payloads[1]
    assert initiator.keys == answering.keys[::-1]

    assert responder.read_init(*beginning.write(payloads[0])) == payloads[0]
    assert beginning.read(*responder.write_accept(ours, payloads[1])) == payloads[1]
    assert beginning.keys == responder.keys


# Whom it does not open for.


@SEALED
@pytest.mark.parametrize("other", [{"secret": flip(SECRET, 0)}, {"prologue": b"another"}])
def test_who_has_another_key_or_prologue_cannot_read_an_init(
    suite: Suite, other: dict[str, bytes]
) -> None:
    initiator, responder = pair(suite, **other)

    with pytest.raises(NotAuthenticError, match=naming("key")):
        responder.read_init(*initiator.write_init(b"i" * 32, b"greeting"))


@SEALED
def test_no_bit_of_an_init_can_be_changed(suite: Suite) -> None:
    initiator, _ = pair(suite)
    public_key, sealed = initiator.write_init(b"i" * 32, b"greeting")
    whole = public_key + sealed

    for bit in range(8 * len(whole)):
        damaged = flip(whole, bit)
        with pytest.raises(NotAuthenticError):
            pair(suite)[1].read_init(damaged[:32], damaged[32:])


@SEALED
def test_no_bit_of_an_accept_can_be_changed_and_the_attempt_changes_nothing(suite: Suite) -> None:
    initiator, responder = pair(suite)
    responder.read_init(*initiator.write_init(b"i" * 32, b"greeting"))
    public_key, sealed = responder.write_accept(b"r" * 32, b"reply")
    whole = public_key + sealed

    for bit in range(8 * len(whole)):
        damaged = flip(whole, bit)
        with pytest.raises(NotAuthenticError):
            initiator.read_accept(damaged[:32], damaged[32:])

    assert initiator.read_accept(public_key, sealed) == b"reply"
    assert initiator.keys == responder.keys


@SEALED
def test_an_accept_answers_one_init_only(suite: Suite) -> None:
    first, second = pair(suite)[0], pair(suite)[0]
    responder = pair(suite)[1]
    first.write_init(b"i" * 32, b"greeting")
    responder.read_init(*second.write_init(b"j" * 32, b"greeting"))
    accept = responder.write_accept(b"r" * 32, b"reply")

    with pytest.raises(NotAuthenticError):
        first.read_accept(*accept)
    assert second.read_accept(*accept) == b"reply"


@SEALED
def test_an_init_of_ours_is_no_accept_for_us(suite: Suite) -> None:
    initiator, _ = pair(suite)

    with pytest.raises(NotAuthenticError):
        initiator.read_accept(*initiator.write_init(b"i" * 32, b"greeting"))


SMALL_ORDER: Final = {
    "zero": bytes(32),
    "one": b"\1" + bytes(31),
    "order 8": bytes.fromhex("e0eb7a7c3b41b8ae1656e3faf19fc46ada098deb9c32b1fd866205165f49b800"),
    "p - 1": bytes.fromhex("ecffffffffffffffffffffffffffffffffffffffffffffffffffffffffffff7f"),
}


class Forger(NoiseHandshake):
    """An initiator that names any public key for its own: the secret is enough to seal for it."""

    def _generate(self, private_key: bytes) -> bytes:
        return private_key


@SEALED
@pytest.mark.parametrize("public_key", SMALL_ORDER.values(), ids=SMALL_ORDER)
def test_a_public_key_of_small_order_is_refused(suite: Suite, public_key: bytes) -> None:
    """With it, everyone would know the result of the exchange."""
    forger, responder = Forger(suite, SECRET, PROLOGUE), pair(suite)[1]
    responder.read_init(*forger.write_init(public_key, b"greeting"))

    with pytest.raises(NotAuthenticError, match="small order"):
        responder.write_accept(b"r" * 32, b"reply")


# Secrecy.


@SEALED
def test_both_directions_have_keys_of_their_own_and_every_handshake_has_others(
    suite: Suite,
) -> None:
    keys: list[bytes] = []
    for private_key in (b"r" * 32, b"q" * 32):
        initiator, responder = pair(suite)
        responder.read_init(*initiator.write_init(b"i" * 32, b"greeting"))
        initiator.read_accept(*responder.write_accept(private_key, b"reply"))
        assert initiator.keys == responder.keys
        keys += initiator.keys

    assert len(set(keys)) == 4


@SEALED
def test_neither_payload_can_be_read_by_who_does_not_take_part(suite: Suite) -> None:
    initiator, responder = pair(suite)
    greeting, reply = b"all that we say", b"all that they say"

    init = b"".join(initiator.write_init(b"i" * 32, greeting))
    responder.read_init(init[:32], init[32:])
    accept = b"".join(responder.write_accept(b"r" * 32, reply))

    assert greeting not in init
    assert reply not in accept
