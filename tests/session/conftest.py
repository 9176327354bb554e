"""What every test of a session shares: a real master, sockets and threads in this process."""

from collections.abc import Iterator

import pytest

from gradwire_protocol import Keyring
from support.client_fixtures import no_settings_from_outside, one_thread
from support.local_master import LocalMaster
from support.sessions import RUN_KEY

__all__ = ["master", "no_settings_from_outside", "one_thread"]


@pytest.fixture
def master() -> Iterator[LocalMaster]:
    """Run a master of the test's own."""
    with LocalMaster() as running:
        yield running


@pytest.fixture
def keyed_master() -> Iterator[LocalMaster]:
    """Run a master that lets in workers with keys of the run `RUN_KEY`."""
    with LocalMaster(keyring=Keyring([RUN_KEY])) as running:
        yield running
