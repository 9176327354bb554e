"""A master that takes the place of one that has died: where it listens, what it goes on with."""

import pytest

from gradwire.cli.launch.lasting_master import LastingMaster, resuming


def ignore(_: str) -> None:
    pass


@pytest.mark.parametrize(
    ("options", "environ", "more"),
    [
        ([], {}, []),
        (["--checkpoint", "folder"], {}, ["--resume", "auto"]),
        ([], {"GRADWIRE_CHECKPOINT": "folder"}, ["--resume", "auto"]),
        ([], {"GRADWIRE_CHECKPOINT": ""}, []),
    ],
)
def test_it_goes_on_with_checkpoints_where_there_are_any(
    options: list[str], environ: dict[str, str], more: list[str]
) -> None:
    assert resuming(options, environ) == more


async def test_a_master_that_ends_at_once_again_and_again_is_given_up_with_its_words() -> None:
    """Its first start has gone well; what it would listen at is taken by then."""
    told: list[str] = []
    options = ["--listen", "127.0.0.1:0", "--http", "off"]
    master = LastingMaster(options, {"GRADWIRE_INSECURE": "1"}, ignore, ignore, told.append)
    try:
        await master.start()
        first = master.child.address
        master._again = ["--listen", "192.0.2.1:1"]
        master.child.child.send_signal(9)

        lost = await master.last()
    finally:
        await master.close()

    assert first in told[0]
    assert len(told) == 2
    assert lost.status == 2
    assert "3 times within 60 s; its last words: gradwire master: cannot listen" in str(lost)
