"""Errors that py4j and PySpark log when the JVM dies are suppressed."""

import logging
import socket
import struct
import threading
from collections.abc import Iterator

import pytest
from py4j.java_gateway import GatewayClient, GatewayParameters
from pyspark.accumulators import AccumulatorTCPServer

from ropewalk.pipeline.session import silence_accumulators, silence_py4j

RESET_ON_CLOSE = struct.pack("ii", 1, 0)  # SO_LINGER with 0 seconds


@pytest.fixture
def dying_gateway() -> Iterator[int]:
    """The port of a gateway that resets the connection at the first request."""

    def reset_connection() -> None:
        connection, _ = listener.accept()
        connection.recv(1024)
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET_ON_CLOSE)
        connection.close()

    with socket.create_server(("127.0.0.1", 0)) as listener:
        thread = threading.Thread(target=reset_connection)
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


def test_call_to_a_dying_jvm_is_not_logged(dying_gateway: int, logged: list[logging.LogRecord]) -> None:
    silence_py4j()
    client = GatewayClient(gateway_parameters=GatewayParameters(address="127.0.0.1", port=dying_gateway))
    assert client.send_command("i\n", retry=False) == "x"
    logging.getLogger().error("other")
    assert [record.getMessage() for record in logged] == ["other"]


def test_end_of_the_connection_for_accumulators_is_not_printed(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(AccumulatorTCPServer, "handle_error", AccumulatorTCPServer.handle_error)
    silence_accumulators()
    server = AccumulatorTCPServer.__new__(AccumulatorTCPServer)
    with socket.socket() as request:
        for error in (EOFError(), ValueError("other")):
            try:
                raise error
            except (EOFError, ValueError):
                server.handle_error(request, None)
    assert capsys.readouterr().err.count("Traceback") == 1
