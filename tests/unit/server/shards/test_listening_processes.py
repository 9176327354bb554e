"""A master that listens with several processes, as seen from the first."""

import os
from contextlib import closing

import pytest

from gradwire_protocol import UsageError
from gradwire_server.config import MasterConfig
from gradwire_server.listening import Listening
from gradwire_server.shards import steering
from gradwire_udp import open_listener, open_socket
from support.driven_side import run_on
from unit.server.shards.test_supervisor import Heard


def test_over_tcp_alone_there_is_one_process() -> None:
    with pytest.raises(UsageError, match="^processes=2; over TCP alone it is 1$"):
        Listening(MasterConfig(processes=2), "tcp")
