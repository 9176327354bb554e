import asyncio
from pathlib import Path

from gradwire.cli.launch.progress import follow
from gradwire_udp.files.keys import write_key
from support.http_documents import documents, pages
from support.http_stub import answering
from support.waiting import SOON

EVERY = 0.01


def test_a_line_comes_again_and_again_also_when_the_master_was_away(
    tmp_path: Path,
) -> None:
    token_file = tmp_path / "operator.token"
    write_key(token_file, "a-token-of-this-test")

    async def followed() -> list[str]:
        shown: list[str] = []
        has_come = asyncio.Event()

        def show(line: str) -> None:
            shown.append(line)
            has_come.set()

        with answering(pages(documents("bert"))) as stub:
            following = asyncio.create_task(follow(stub.address, token_file, show, EVERY, 5_000))
            await has_come.wait()
            stub.close()
        has_come.clear()
        with answering(pages(documents("gpt")), stub.port):
            while not any(line.startswith("gpt") for line in shown):
                await has_come.wait()
                has_come.clear()
            following.cancel()
        return shown

    [first, *_] = asyncio.run(asyncio.wait_for(followed(), SOON))
    assert first.startswith("bert: workers 2, step 1,002 of 5,000, eta")
