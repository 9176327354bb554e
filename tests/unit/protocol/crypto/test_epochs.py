"""The key of a packet number: both sides find the same one, and the past is gone."""

import hmac

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gradwire_protocol import Suite
from gradwire_protocol.crypto.epochs import OpeningKeys, SealingKeys, epoch_of, next_key
from gradwire_protocol.crypto.suites import CIPHER_NONCE_BYTES, Cipher
from gradwire_protocol.limits import EPOCH_PACKETS_BITS, PACKET_NUMBERS_BITS
from support.wording import naming

KEY = bytes(range(32))
EPOCH = 2**EPOCH_PACKETS_BITS
NONCE = bytes(CIPHER_NONCE_BYTES)


def key_of(epoch: int) -> bytes:
    key = KEY
    for _ in range(epoch):
        key = next_key(key)
    return key


def same(one: Cipher | None, other: Cipher | None) -> bool:
    """Return whether two ciphers have the same key."""
    if one is None or other is None:
        return one is other
    return one.encrypt(NONCE, b"data", b"") == other.encrypt(NONCE, b"data", b"")


def cipher_of_epoch(epoch: int) -> Cipher:
    return SealingKeys(Suite.AES, key_of(epoch)).cipher(0)


def test_an_epoch_is_so_many_packets() -> None:
    assert [epoch_of(n) for n in (0, EPOCH - 1, EPOCH, 2 * EPOCH - 1, 2 * EPOCH)] == [0, 0, 1, 1, 2]


def test_the_next_key_is_the_documented_one_and_tells_nothing_of_the_one_before() -> None:
    assert next_key(KEY) == hmac.digest(KEY, b"gradwire ku\x01", "sha256")
    assert len({key_of(epoch) for epoch in range(5)}) == 5


@given(numbers=st.lists(st.integers(0, 5 * EPOCH), min_size=1, max_size=20).map(sorted))
def test_every_number_has_the_key_of_its_epoch(numbers: list[int]) -> None:
    keys = SealingKeys(Suite.AES, KEY)

    for number in numbers:
        assert same(keys.cipher(number), cipher_of_epoch(epoch_of(number)))
        assert keys.epoch == epoch_of(number)


@given(numbers=st.lists(st.integers(0, EPOCH // 4), min_size=1, max_size=20))
def test_what_one_side_seals_the_other_one_opens_however_it_is_overtaken(
    numbers: list[int],
) -> None:
    """Packets arrive up to half an epoch late or early."""
    sealing, opening = SealingKeys(Suite.AES, KEY), OpeningKeys(Suite.AES, KEY)
    for i, shift in enumerate(numbers):
        at = i * EPOCH // 2
        sealer = sealing.cipher(at)
        late = max(at - shift, 0)
        assert same(opening.cipher(at), sealer)
        opening.on_authentic(at)
        assert same(opening.cipher(late), cipher_of_epoch(epoch_of(late)))


def test_a_key_of_the_past_is_never_used_again() -> None:
    keys = SealingKeys(Suite.AES, KEY)
    keys.cipher(EPOCH)

    with pytest.raises(AssertionError, match=naming(f"packet {EPOCH - 1}")):
        keys.cipher(EPOCH - 1)


def test_packet_numbers_have_an_end_that_nobody_reaches() -> None:
    with pytest.raises(AssertionError):
        SealingKeys(Suite.AES, KEY).cipher(2**PACKET_NUMBERS_BITS)


def test_a_receiver_has_the_keys_of_three_epochs_at_most() -> None:
    keys = OpeningKeys(Suite.AES, KEY)
    had = []
    for epoch in range(4):
        assert keys.on_authentic(epoch * EPOCH) == (epoch > 0)
        had.append([e for e in range(8) if keys.cipher(e * EPOCH) is not None])

    assert had == [[0, 1], [0, 1, 2], [1, 2, 3], [2, 3, 4]]


def test_the_key_before_is_erased_when_it_is_told_to_and_stays_so() -> None:
    keys = OpeningKeys(Suite.AES, KEY)
    keys.on_authentic(EPOCH)
    assert keys.cipher(EPOCH - 1) is not None

    keys.forget_previous_key()
    keys.forget_previous_key()

    assert keys.cipher(EPOCH - 1) is None
    assert keys.cipher(EPOCH) is not None
    assert keys.cipher(2 * EPOCH) is not None
    assert keys.cipher(3 * EPOCH) is None


def test_a_late_packet_of_the_epoch_before_begins_none() -> None:
    keys = OpeningKeys(Suite.AES, KEY)
    keys.on_authentic(EPOCH)

    assert not keys.on_authentic(EPOCH - 1)
    assert not keys.on_authentic(EPOCH + 1)
    assert keys.epoch == 1


def test_forgeries_are_counted_anew_in_every_epoch() -> None:
    keys = OpeningKeys(Suite.AES, KEY)
    keys.forgeries = 5
    keys.on_authentic(EPOCH - 1)
    assert keys.forgeries == 5

    keys.on_authentic(EPOCH)

    assert keys.forgeries == 0
