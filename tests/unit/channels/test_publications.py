"""An app publishes at once, from the loop and from threads, while it is served; and it starts and stops."""

import asyncio
import threading
from collections.abc import Sequence

import pytest

from ropewalk.channels import App, inline
from ropewalk.model.errors import ApplicationError, Unavailable
from ropewalk.model.messages import Publication, Receipt


class Press:
    """A publisher that remembers, and on which thread it was asked."""

    def __init__(self) -> None:
        self.published: list[Publication] = []
        self.threads: set[int] = set()

    async def publish(self, publications: Sequence[Publication]) -> list[Receipt]:
        self.published += publications
        self.threads.add(threading.get_ident())
        return [Receipt(each.stream, "e", len(self.published)) for each in publications]


async def served(app: App) -> Press:
    press = Press()
    await app.start(press.publish, inline)
    return press


async def test_what_is_published_has_a_receipt() -> None:
    app = App()
    press = await served(app)
    receipt = await app.publish("news", {"a": 1}, uid="u", type="note", transient=True, exclude_socket="s-1")
    assert receipt == Receipt("news", "e", 1)
    assert press.published == [Publication("news", b'{"a":1}', "s-1", "note", True, "u")]


async def test_a_thread_publishes_on_the_loop_of_the_server() -> None:
    app = App()
    press = await served(app)
    assert await asyncio.to_thread(app.publish_sync, "news", 1) == Receipt("news", "e", 1)
    assert press.threads == {threading.get_ident()}


async def test_another_event_loop_publishes_on_the_loop_of_the_server() -> None:
    app = App()
    press = await served(app)
    assert await asyncio.to_thread(lambda: asyncio.run(app.publish("news", 1))) == Receipt("news", "e", 1)
    assert press.threads == {threading.get_ident()}


async def test_publish_sync_on_the_event_loop_says_what_to_use() -> None:
    app = App()
    await served(app)
    with pytest.raises(RuntimeError, match=r"await app\.publish"):
        app.publish_sync("news", 1)


async def test_publish_sync_does_not_wait_for_ever() -> None:
    app = App()

    async def never(publications: Sequence[Publication]) -> list[Receipt]:
        await asyncio.Event().wait()
        return []

    await app.start(never, inline)
    with pytest.raises(Unavailable, match="within 0 s"):
        await asyncio.to_thread(lambda: app.publish_sync("news", 1, timeout=0))


async def test_an_app_that_is_not_served_cannot_publish() -> None:
    app = App()
    with pytest.raises(RuntimeError, match="while the server runs the app"):
        await app.publish("news", 1)
    await served(app)
    await app.stop(inline)
    with pytest.raises(RuntimeError, match="while the server runs the app"):
        await asyncio.to_thread(app.publish_sync, "news", 1)


async def test_what_cannot_be_published_is_said_before_anything_is_sent() -> None:
    app = App()
    press = await served(app)
    with pytest.raises(TypeError, match="the message for news cannot be written as JSON"):
        await app.publish("news", object())
    with pytest.raises(ValueError, match="cannot be empty"):
        await app.publish("", 1)
    with pytest.raises(ValueError, match="cannot be of type disconnect"):
        await app.publish("news", 1, type="disconnect")
    assert press.published == []


async def test_startup_runs_in_order_and_shutdown_in_the_reverse_and_both_may_publish() -> None:
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

    press = await served(app)
    await app.stop(inline)
    assert order == ["one", "two", "close two", "close one"]
    assert [each.payload for each in press.published] == [b'"up"', b'"down"']


async def test_a_startup_that_fails_is_an_error_and_the_app_is_not_served() -> None:
    app = App()

    @app.on_startup
    def connect_to_the_database() -> None:
        raise OSError("refused")

    with pytest.raises(ApplicationError, match="connect_to_the_database failed: OSError"):
        await served(app)
    with pytest.raises(RuntimeError):
        await app.publish("news", 1)


async def test_a_shutdown_that_fails_does_not_stop_the_others(caplog: pytest.LogCaptureFixture) -> None:
    app, order = App(), list[str]()
    app.on_shutdown(lambda: order.append("first"))

    @app.on_shutdown
    def broken() -> None:
        raise OSError

    await served(app)
    await app.stop(inline)
    assert order == ["first"]
    assert "broken failed" in caplog.text
