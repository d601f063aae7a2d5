"""The live half: who may connect, and what happens in a room. Run by the server, with `ropewalk serve --app chat.channels:app`.

The handlers are plain functions, so the server runs them in threads, and the ORM works in them as it does in views.
"""

import os
from collections.abc import Callable
from functools import wraps
from importlib import import_module
from typing import Any, ParamSpec, TypeVar

import django
from django.conf import settings
from django.contrib.auth import get_user
from django.core.exceptions import ValidationError
from django.db import close_old_connections
from django.http import HttpRequest

from ropewalk import ActionError, App, Channel, Connection, action

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "chat.settings")
django.setup()

# Models can be imported once Django is set up.
from chat.models import Message, is_room, room_stream  # noqa: E402

P = ParamSpec("P")
T = TypeVar("T")
Sessions = import_module(settings.SESSION_ENGINE).SessionStore

app = App()


def with_database(handler: Callable[P, T]) -> Callable[P, T]:
    """Close broken or expired database connections, as Django does around each request."""

    @wraps(handler)
    def handled(*args: P.args, **kwargs: P.kwargs) -> T:
        close_old_connections()
        try:
            return handler(*args, **kwargs)
        finally:
            close_old_connections()

    return handled


@app.on_connect
@with_database
def connect(connection: Connection) -> None:
    """Authenticate by the session cookie of Django's login."""
    request = HttpRequest()
    request.session = Sessions(connection.cookies.get(settings.SESSION_COOKIE_NAME))
    user = get_user(request)
    if not user.is_authenticated:
        connection.reject("no session of a user")
    connection.identify(user=user.pk)
    connection.state["name"] = user.get_username()


@app.channel
class ChatChannel(Channel):
    def subscribed(self) -> None:
        if not is_room(self.params.get("room")):
            self.reject("no such room")
        self.stream_from(room_stream(self.params["room"]), whisper=True, presence=True)
        self.join_presence(info={"name": self.connection.state["name"]})

    @action
    @with_database
    def speak(self, data: dict[str, Any]) -> None:
        author, text = self.connection.identity["user"], data.get("text")
        message = Message(room=self.params["room"], author_id=author, text=text if isinstance(text, str) else "")
        try:
            message.full_clean()
        except ValidationError as error:
            raise ActionError(" ".join(error.messages)) from None
        message.save()
        self.broadcast(message.stream, message.shown(), uid=message.uid)
