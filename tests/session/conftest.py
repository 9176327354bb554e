"""What every test of a session shares: a real master, sockets and threads in this process."""

from collections.abc import Iterator

import pytest

from support.client_fixtures import no_settings_from_outside, one_thread
from support.local_master import LocalMaster

__all__ = ["master", "no_settings_from_outside", "one_thread"]


@pytest.fixture
def master() -> Iterator[LocalMaster]:
    """Run a master of the test's own."""
    with LocalMaster() as running:
        yield running
        for session in running.sessions:
            session.close()
