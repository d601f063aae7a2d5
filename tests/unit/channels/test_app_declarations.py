"""Declarations of apps, channels and actions: errors are raised at the declaration, and types are kept."""

from collections.abc import Callable
from functools import wraps
from typing import Any, assert_type

import pytest

import ropewalk
from ropewalk import App, Channel, Connection, action
from tests.unit.channels.requests import encode_identifier, perform, subscribe


def test_decorators_return_the_decorated_object() -> None:
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

    async def check_types(chat: Chat) -> None:
        assert_type(chat.speak({"a": 1}), str)
        await chat.shout()

    assert app.on_connect(connect) is connect
    assert app.on_startup(start) is start
    assert app.on_shutdown(start) is start


def test_channel_name_must_be_unique() -> None:
    app = App()

    @app.channel
    class Chat(Channel): ...

    class Other(Channel): ...

    with pytest.raises(ValueError, match=r"a channel 'Chat' already: .*Chat"):
        app.channel("Chat")(Other)


async def test_class_can_be_registered_under_two_names() -> None:
    app = App()

    @app.channel("Chat::RoomChannel")
    @app.channel
    class Chat(Channel): ...

    for name in ("Chat", "Chat::RoomChannel"):
        assert (await subscribe(app, encode_identifier(name))).accepted


def test_channel_must_be_a_subclass_of_channel(subtests: pytest.Subtests) -> None:
    things: list[Any] = [object, int, len, 7]
    for thing in things:
        with subtests.test(thing=thing), pytest.raises(TypeError, match=r"subclass of ropewalk\.Channel"):
            App().channel(thing)


def test_reserved_and_empty_channel_names_are_rejected(subtests: pytest.Subtests) -> None:
    for name in ["", "$pubsub"]:
        with subtests.test(name=name):

            class Chat(Channel): ...

            with pytest.raises(ValueError, match="cannot be named"):
                App().channel(name)(Chat)


def test_connection_handlers_can_be_declared_only_once() -> None:
    app = App()

    @app.on_connect
    @app.on_disconnect
    def first(connection: Connection) -> None: ...

    with pytest.raises(ValueError, match="on_connect already: first"):
        app.on_connect(lambda connection: None)
    with pytest.raises(ValueError, match="on_disconnect already: first"):
        app.on_disconnect(lambda connection: None)


def test_action_name_must_be_unique_in_a_channel() -> None:
    with pytest.raises(ValueError, match="two methods of Chat are the action 'speak': shout and speak"):

        class Chat(Channel):
            @action("speak")
            def shout(self) -> None: ...
            @action
            def speak(self) -> None: ...


def test_inherited_action_name_cannot_be_reused() -> None:
    class Base(Channel):
        @action
        def speak(self) -> None: ...

    with pytest.raises(ValueError, match="'speak'"):

        class Chat(Base):
            @action("speak")
            def talk(self) -> None: ...


def test_attribute_of_channel_cannot_be_an_action(subtests: pytest.Subtests) -> None:
    for name in ["subscribed", "transmit", "state", "params", "__init__"]:
        with subtests.test(name=name), pytest.raises(TypeError, match="cannot"):
            type("Chat", (Channel,), {name: action(lambda self: None)})


def test_override_of_an_action_must_be_decorated() -> None:
    class Base(Channel):
        @action
        def speak(self) -> None: ...

    with pytest.raises(TypeError, match=r"Chat\.speak overrides an action"):

        class Chat(Base):
            def speak(self) -> None: ...


def _without_parameters() -> None: ...
def _with_three_parameters(self: object, data: object, more: object) -> None: ...
def _with_a_keyword_parameter(self: object, data: object, *, more: object) -> None: ...


def test_action_takes_self_and_optional_data(subtests: pytest.Subtests) -> None:
    cases: list[Callable[..., None]] = [_without_parameters, _with_three_parameters, _with_a_keyword_parameter]
    for method in cases:
        with subtests.test(method=method), pytest.raises(TypeError, match=r"takes `self, data` or only `self`"):
            action(method)


def test_action_must_be_a_plain_method(subtests: pytest.Subtests) -> None:
    cases: list[Any] = [staticmethod(_without_parameters), classmethod(_with_three_parameters), property(len), 7]
    for thing in cases:
        with subtests.test(thing=thing), pytest.raises(TypeError, match="plain method"):
            action(thing)


def test_action_name_cannot_be_empty() -> None:
    with pytest.raises(ValueError, match="cannot be empty"):
        action("")


def test_channel_cannot_define_init() -> None:
    with pytest.raises(TypeError, match="lives for one call"):

        class Chat(Channel):
            def __init__(self) -> None: ...


async def test_action_keeps_its_mark_under_other_decorators() -> None:
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

    answer = await perform(app, encode_identifier("Chat"), "speak", text="hi")
    assert [text.rpartition(":")[2] for text in answer.transmissions] == ['"loud"}', '"hi"}']


def test_package_exports_the_names_for_channel_authors() -> None:
    assert {"App", "Channel", "Connection", "action"} <= set(dir(ropewalk))
    with pytest.raises(AttributeError, match="no attribute 'Nonsense'"):
        ropewalk.Nonsense  # type: ignore[attr-defined]  # noqa: B018
