"""What cannot work is said where it is declared; what is declared keeps its type."""

from collections.abc import Callable
from functools import wraps
from typing import Any, assert_type

import pytest

import ropewalk
from ropewalk import App, Channel, Connection, action
from tests.unit.channels.requests import named, perform, subscribe


def test_decorators_give_back_what_they_were_put_on() -> None:
    app = App()

    class Chat(Channel):
        @action
        def speak(self, data: dict[str, int]) -> str:
            return ""

        @action("shout-it")
        async def shout(self) -> None: ...

    async def connect(connection: Connection) -> None: ...
    def start() -> None: ...

    assert_type(app.channel(Chat), type[Chat])
    assert_type(app.channel("Chat::Room")(Chat), type[Chat])

    async def only_for_the_type_checker(chat: Chat) -> None:
        assert_type(chat.speak({"a": 1}), str)
        await chat.shout()

    assert app.on_connect(connect) is connect
    assert app.on_startup(start) is start
    assert app.on_shutdown(start) is start


def test_two_channels_cannot_have_one_name() -> None:
    app = App()

    @app.channel
    class Chat(Channel): ...

    class Other(Channel): ...

    with pytest.raises(ValueError, match=r"a channel 'Chat' already: .*Chat"):
        app.channel("Chat")(Other)


async def test_one_class_may_have_two_names() -> None:
    app = App()

    @app.channel("Chat::RoomChannel")
    @app.channel
    class Chat(Channel): ...

    for name in ("Chat", "Chat::RoomChannel"):
        assert (await subscribe(app, named(name))).accepted


@pytest.mark.parametrize("thing", [object, int, len, 7])
def test_only_a_channel_can_be_a_channel(thing: Any) -> None:
    with pytest.raises(TypeError, match=r"subclass of ropewalk\.Channel"):
        App().channel(thing)


@pytest.mark.parametrize("name", ["", "$pubsub"])
def test_names_of_the_server_and_no_name_at_all_are_refused(name: str) -> None:
    class Chat(Channel): ...

    with pytest.raises(ValueError, match="cannot be named"):
        App().channel(name)(Chat)


def test_a_handler_of_connections_is_declared_once() -> None:
    app = App()

    @app.on_connect
    @app.on_disconnect
    def first(connection: Connection) -> None: ...

    with pytest.raises(ValueError, match="on_connect already: first"):
        app.on_connect(lambda connection: None)
    with pytest.raises(ValueError, match="on_disconnect already: first"):
        app.on_disconnect(lambda connection: None)


def test_two_methods_cannot_be_the_same_action() -> None:
    with pytest.raises(ValueError, match="two methods of Chat are the action 'speak': shout and speak"):

        class Chat(Channel):
            @action("speak")
            def shout(self) -> None: ...
            @action
            def speak(self) -> None: ...


def test_an_inherited_name_cannot_be_taken_either() -> None:
    class Base(Channel):
        @action
        def speak(self) -> None: ...

    with pytest.raises(ValueError, match="'speak'"):

        class Chat(Base):
            @action("speak")
            def talk(self) -> None: ...


@pytest.mark.parametrize("name", ["subscribed", "transmit", "state", "params", "__init__"])
def test_what_every_channel_has_cannot_be_an_action(name: str) -> None:
    with pytest.raises(TypeError, match="cannot"):
        type("Chat", (Channel,), {name: action(lambda self: None)})


def test_an_override_of_an_action_says_whether_it_is_one() -> None:
    class Base(Channel):
        @action
        def speak(self) -> None: ...

    with pytest.raises(TypeError, match=r"Chat\.speak overrides an action"):

        class Chat(Base):
            def speak(self) -> None: ...


def _none() -> None: ...
def _three(self: object, data: object, more: object) -> None: ...
def _named(self: object, data: object, *, more: object) -> None: ...


@pytest.mark.parametrize("method", [_none, _three, _named])
def test_an_action_takes_self_and_data_or_self_alone(method: Callable[..., None]) -> None:
    with pytest.raises(TypeError, match=r"takes `self, data` or `self` alone"):
        action(method)


@pytest.mark.parametrize("thing", [staticmethod(_none), classmethod(_three), property(len), 7])
def test_an_action_is_a_plain_method(thing: Any) -> None:
    with pytest.raises(TypeError, match="plain method"):
        action(thing)


def test_an_action_has_a_name() -> None:
    with pytest.raises(ValueError, match="cannot be empty"):
        action("")


def test_a_channel_has_no_init_of_its_own() -> None:
    with pytest.raises(TypeError, match="lives for one call"):

        class Chat(Channel):
            def __init__(self) -> None: ...


async def test_an_action_stays_one_under_other_decorators() -> None:
    def loud(method: Callable[..., None]) -> Callable[..., None]:
        @wraps(method)
        def wrapper(self: Channel, *args: object) -> None:
            self.transmit("loud")
            method(self, *args)

        return wrapper

    app = App()

    @app.channel
    class Chat(Channel):
        @loud
        @action
        def speak(self, data: dict[str, Any]) -> None:
            self.transmit(data["text"])

    answer = await perform(app, named("Chat"), "speak", text="hi")
    assert [text.rpartition(":")[2] for text in answer.transmissions] == ['"loud"}', '"hi"}']


def test_the_package_exports_what_authors_need_and_nothing_else_by_chance() -> None:
    assert {"App", "Channel", "Connection", "action"} <= set(dir(ropewalk))
    with pytest.raises(AttributeError, match="no attribute 'Nonsense'"):
        ropewalk.Nonsense  # type: ignore[attr-defined]  # noqa: B018
