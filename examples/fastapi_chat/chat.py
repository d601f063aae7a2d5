"""What both halves of the chat agree on: who somebody is, and which stream a room has."""

import os
import time

import jwt

COOKIE = "chat_session"
COOKIE_SECONDS = 12 * 3600
ROOM = "[a-z0-9-]{1,40}"
LONGEST_TEXT = 2000

# Both processes need the same one. Not Ropewalk's own secret: with that one anybody could also publish.
SECRET = os.environ.get("CHAT_SECRET", "")
if len(SECRET) < 32:
    raise RuntimeError("CHAT_SECRET signs the session cookies and must be secret: export CHAT_SECRET=$(openssl rand -hex 32)")


def cookie_for(name: str) -> str:
    return jwt.encode({"sub": name, "exp": int(time.time()) + COOKIE_SECONDS}, SECRET, algorithm="HS256")


def name_in(cookie: str) -> str | None:
    """Who the cookie was made for; None if it is not one of ours, or too old."""
    try:
        claims = jwt.decode(cookie, SECRET, algorithms=["HS256"], options={"require": ["sub", "exp"]})
    except jwt.InvalidTokenError:
        return None
    return str(claims["sub"])


def stream_of(room: str) -> str:
    return f"chat/{room}"
