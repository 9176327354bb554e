"""Make `noise.json`: handshakes as an independent implementation, `noiseprotocol`, does them.

What goes in is counted up from a number, so it can be seen that nothing was chosen. To be run from
the root of the repository::

    PYTHONPATH=tests python tests/unit/protocol/crypto/vectors/make.py
"""

import json
from hashlib import sha256
from itertools import product
from pathlib import Path

from gradwire_protocol.crypto.suites import NOISE_NAMES, Suite
from support.reference_noise import ReferenceHandshake

VECTORS = Path(__file__).with_name("noise.json")
PAYLOADS_BYTES = ((0, 0), (1, 1), (88, 40))
"""Of INIT and ACCEPT; the last are those of a greeting and a reply."""
PROLOGUE_BYTES = (0, 24)


def vector(suite: Suite, sizes: tuple[int, int], prologue_bytes: int) -> dict[str, str]:
    """Return one handshake, all of it in hexadecimal."""
    name = NOISE_NAMES[suite].decode()
    inputs = {
        what: sha256(f"{name} {sizes} {prologue_bytes} {what}".encode()).digest()
        for what in ("secret", "prologue", "initiator_private_key", "responder_private_key")
    }
    inputs["prologue"] = inputs["prologue"][:prologue_bytes]
    inputs["greeting"], inputs["reply"] = (bytes(range(size)) for size in sizes)
    secret, prologue = inputs["secret"], inputs["prologue"]
    initiator, responder = (
        ReferenceHandshake(
            suite, secret, prologue, inputs[f"{side}_private_key"], initiator=side == "initiator"
        )
        for side in ("initiator", "responder")
    )
    init = initiator.write(inputs["greeting"])
    assert responder.read(*init) == inputs["greeting"]
    accept = responder.write(inputs["reply"])
    assert initiator.read(*accept) == inputs["reply"]
    there, back = initiator.keys
    outputs = {
        "initiator_public_key": init[0],
        "sealed_greeting": init[1],
        "responder_public_key": accept[0],
        "sealed_reply": accept[1],
        "key_there": there,
        "key_back": back,
    }
    return {"name": name} | {what: data.hex() for what, data in (inputs | outputs).items()}


if __name__ == "__main__":
    made = [vector(*choice) for choice in product(NOISE_NAMES, PAYLOADS_BYTES, PROLOGUE_BYTES)]
    VECTORS.write_text(json.dumps(made, indent=2) + "\n")
