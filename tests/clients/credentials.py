"""Tokens and signed names as an application makes them with the shared secret. Written independently of our own code."""

import base64
import hashlib
import hmac
import json
import time
from math import ceil

import jwt

SECRET = "a secret of more than thirty-two bytes"
FOREIGN_SECRET = "another secret of more than thirty-two bytes"
BROADCAST_KEY = hmac.new(SECRET.encode(), b"broadcast-cable", hashlib.sha256).hexdigest()
SHORT_LIFE = 6
"""Seconds: of a token that ends while a test waits for it. A client of a busy machine has to be in before that."""


def token(ids: str = "user/1", expires_in: float = 3600, secret: str = SECRET) -> str:
    return jwt.encode({"ext": ids, "exp": ceil(time.time() + expires_in)}, secret, algorithm="HS256")


def signed(stream: str, secret: str = SECRET, encode: str = "b64encode") -> str:
    """`encode` names the base64 alphabet: the Ruby SDK signs with the URL-safe one, others with the standard one."""
    name: str = getattr(base64, encode)(json.dumps(stream).encode()).decode()
    return f"{name}--{hmac.new(secret.encode(), name.encode(), hashlib.sha256).hexdigest()}"
