"""What py4j logs of a JVM that dies amid a call: nothing of it reaches the user."""

import logging
import socket
import struct
import threading
from collections.abc import Iterator

import pytest
from py4j.java_gateway import GatewayClient, GatewayParameters

from ropewalk.pipeline.session import silence_py4j

AT_ONCE = struct.pack("ii", 1, 0)  # closing resets the connection


@pytest.fixture
def dying() -> Iterator[int]:
    """The port of somebody who dies as soon as it is asked something."""

    def die() -> None:
        connection, _ = listener.accept()
        connection.recv(1024)
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, AT_ONCE)
        connection.close()

    with socket.create_server(("127.0.0.1", 0)) as listener:
        thread = threading.Thread(target=die)
        thread.start()
        yield listener.getsockname()[1]
        thread.join()


class Collector(logging.Handler):
    def __init__(self) -> None:
        super().__init__()
        self.records: list[logging.LogRecord] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.records.append(record)


@pytest.fixture
def logged() -> Iterator[list[logging.LogRecord]]:
    handler, root = Collector(), logging.getLogger()
    before = list(root.filters)
    root.addHandler(handler)
    yield handler.records
    root.removeHandler(handler)
    root.filters[:] = before


def test_a_call_that_dies_with_its_jvm_is_not_logged(dying: int, logged: list[logging.LogRecord]) -> None:
    silence_py4j()
    client = GatewayClient(gateway_parameters=GatewayParameters(address="127.0.0.1", port=dying))
    assert client.send_command("i\n", retry=False) == "x"
    logging.getLogger().error("somebody else's")
    assert [record.getMessage() for record in logged] == ["somebody else's"]
