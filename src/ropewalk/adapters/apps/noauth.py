"""Everybody may come in. Each connection is known by its own sid, so that no two share an identity."""

from msgspec.json import encode

from ropewalk.model.sessions import Accepted, ConnectRequest


class NoAuth:
    """The authenticator of public servers. Ask it last: it never passes a connection on."""

    async def authenticate(self, request: ConnectRequest, sid: str) -> Accepted:
        return Accepted(encode({"sid": sid}).decode(), anonymous=True)
