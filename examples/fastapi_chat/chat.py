"""Shared by both processes of the chat: session cookies and stream names."""

import os
import time

import jwt

COOKIE = "chat_session"
COOKIE_SECONDS = 12 * 3600
ROOM = "[a-z0-9-]{1,40}"
MAX_TEXT_LENGTH = 2000

# The same for both processes. Not Ropewalk's secret, which also authorizes publishing.
SECRET = os.environ.get("CHAT_SECRET", "")
if len(SECRET) < 32:
    raise RuntimeError("CHAT_SECRET signs the session cookies and must be secret: export CHAT_SECRET=$(openssl rand -hex 32)")


def cookie_for(name: str) -> str:
    return jwt.encode({"sub": name, "exp": int(time.time()) + COOKIE_SECONDS}, SECRET, algorithm="HS256")


def name_in(cookie: str) -> str | None:
    """The name in the cookie; None if its signature is invalid or it has expired."""
    try:
        claims = jwt.decode(cookie, SECRET, algorithms=["HS256"], options={"require": ["sub", "exp"]})
    except jwt.InvalidTokenError:
        return None
    return str(claims["sub"])


def room_stream(room: str) -> str:
    return f"chat/{room}"
