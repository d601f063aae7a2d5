"""Publishing from an app, from the loop and from threads, and its startup and shutdown handlers."""

import asyncio
import threading
from collections.abc import Sequence

import pytest

from ropewalk.channels import App, inline
from ropewalk.model.errors import ApplicationError, Unavailable
from ropewalk.model.messages import Publication, Receipt


class RecordingPublisher:
    """Records publications and the threads that published them."""

    def __init__(self) -> None:
        self.published: list[Publication] = []
        self.threads: set[int] = set()

    async def publish(self, publications: Sequence[Publication]) -> list[Receipt]:
        self.published += publications
        self.threads.add(threading.get_ident())
        return [Receipt(each.stream, "e", len(self.published)) for each in publications]


async def serve(app: App) -> RecordingPublisher:
    publisher = RecordingPublisher()
    await app.start(publisher.publish, inline)
    return publisher


async def test_publish_returns_a_receipt() -> None:
    app = App()
    publisher = await serve(app)
    receipt = await app.publish("news", {"a": 1}, uid="u", type="note", transient=True, exclude_socket="s-1")
    assert receipt == Receipt("news", "e", 1)
    assert publisher.published == [Publication("news", b'{"a":1}', "s-1", "note", True, "u")]


async def test_publish_sync_runs_on_the_loop_of_the_server() -> None:
    app = App()
    publisher = await serve(app)
    assert await asyncio.to_thread(app.publish_sync, "news", 1) == Receipt("news", "e", 1)
    assert publisher.threads == {threading.get_ident()}


async def test_publish_from_another_loop_runs_on_the_loop_of_the_server() -> None:
    app = App()
    publisher = await serve(app)
    assert await asyncio.to_thread(lambda: asyncio.run(app.publish("news", 1))) == Receipt("news", "e", 1)
    assert publisher.threads == {threading.get_ident()}


async def test_publish_sync_on_the_event_loop_is_rejected() -> None:
    app = App()
    await serve(app)
    with pytest.raises(RuntimeError, match=r"await app\.publish"):
        app.publish_sync("news", 1)


async def test_publish_sync_times_out() -> None:
    app = App()

    async def never(publications: Sequence[Publication]) -> list[Receipt]:
        await asyncio.Event().wait()
        return []

    await app.start(never, inline)
    with pytest.raises(Unavailable, match="within 0 s"):
        await asyncio.to_thread(lambda: app.publish_sync("news", 1, timeout=0))


async def test_app_that_is_not_running_cannot_publish() -> None:
    app = App()
    with pytest.raises(RuntimeError, match="while the server runs the app"):
        await app.publish("news", 1)
    await serve(app)
    await app.stop(inline)
    with pytest.raises(RuntimeError, match="while the server runs the app"):
        await asyncio.to_thread(app.publish_sync, "news", 1)


async def test_invalid_publication_is_rejected_before_it_is_sent() -> None:
    app = App()
    publisher = await serve(app)
    with pytest.raises(TypeError, match="the message for news cannot be written as JSON"):
        await app.publish("news", object())
    with pytest.raises(ValueError, match="cannot be empty"):
        await app.publish("", 1)
    with pytest.raises(ValueError, match="cannot be of type disconnect"):
        await app.publish("news", 1, type="disconnect")
    assert publisher.published == []


async def test_startup_runs_in_order_and_shutdown_in_reverse_order() -> None:
    app, order = App(), list[str]()

    @app.on_startup
    async def one() -> None:
        await app.publish("news", "up")
        order.append("one")

    @app.on_startup
    def two() -> None:
        order.append("two")

    @app.on_shutdown
    def close_one() -> None:
        order.append("close one")

    @app.on_shutdown
    async def close_two() -> None:
        await app.publish("news", "down")
        order.append("close two")

    publisher = await serve(app)
    await app.stop(inline)
    assert order == ["one", "two", "close two", "close one"]
    assert [each.payload for each in publisher.published] == [b'"up"', b'"down"']


async def test_failed_startup_is_an_application_error() -> None:
    app = App()

    @app.on_startup
    def connect_database() -> None:
        raise OSError("refused")

    with pytest.raises(ApplicationError, match="connect_database failed: OSError"):
        await serve(app)
    with pytest.raises(RuntimeError):
        await app.publish("news", 1)


async def test_failed_shutdown_handler_does_not_stop_the_others(caplog: pytest.LogCaptureFixture) -> None:
    app, order = App(), list[str]()
    app.on_shutdown(lambda: order.append("first"))

    @app.on_shutdown
    def broken() -> None:
        raise OSError

    await serve(app)
    await app.stop(inline)
    assert order == ["first"]
    assert "broken failed" in caplog.text
