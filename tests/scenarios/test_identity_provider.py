"""Clients connect with tokens of an identity provider, whose keys a server fetches."""

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import aiohttp
from aiohttp import web

from tests.cable import cable
from tests.identity_provider import AUDIENCE, ProviderKey, ec_key, key_set, rsa_key
from tests.server import running_server


class Provider:
    """Serves `body`; nothing if that is None."""

    def __init__(self, *keys: ProviderKey) -> None:
        self.body: bytes | None = key_set(*keys)
        self.url = ""

    async def answer(self, request: web.Request) -> web.Response:
        return web.Response(status=503) if self.body is None else web.Response(body=self.body)

    @asynccontextmanager
    async def serving(self) -> AsyncIterator["Provider"]:
        app = web.Application()
        app.router.add_get("/jwks.json", self.answer)
        runner = web.AppRunner(app)
        await runner.setup()
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        self.url = f"http://127.0.0.1:{runner.addresses[0][1]}/jwks.json"
        try:
            yield self
        finally:
            await runner.cleanup()


async def test_clients_connect_with_tokens_of_a_provider_also_while_it_is_away() -> None:
    old, new = rsa_key("old"), ec_key("new")
    async with Provider(old, new).serving() as provider:
        flags = ("--jwks_url", provider.url, "--jwt_audience", AUDIENCE, "--jwt_identity", "sub", "--public_streams")
        with running_server(*flags, "--broadcast_key", "key") as server:
            for key in (old, new):
                async with cable(server, params={"jid": key.sign(sub="jane")}) as jane:
                    await jane.subscribe("news")
            provider.body = None
            async with cable(server, params={"jid": new.sign(sub="joe")}):
                pass
            wrong = new.sign(sub="joe", aud="another"), ec_key("new").sign(sub="joe"), rsa_key("unknown").sign(sub="joe")
            for token in wrong:
                async with cable(server, welcome=False, params={"jid": token}) as refused:
                    assert (await refused.expect("disconnect"))["reason"] == "unauthorized"
            async with cable(server, params={"jid": new.sign(sub="jane")}) as jane:
                disconnect = {"command": "disconnect", "payload": {"identifier": json.dumps({"sub": "jane"})}}
                async with aiohttp.ClientSession(headers={"Authorization": "Bearer key"}) as http:
                    await http.post(f"{server.url}/_broadcast", json=disconnect)
                assert (await jane.expect("disconnect"))["reason"] == "remote"


async def test_client_may_come_back_if_no_key_could_be_read() -> None:
    key = rsa_key("a")
    async with Provider(key).serving() as provider:
        provider.body = None
        with running_server("--jwks_url", provider.url, "--jwt_audience", AUDIENCE) as server:
            async with cable(server, welcome=False, params={"jid": key.sign(ext="jane")}) as client:
                assert await client.closed() == (1011, "Auth Error")
            assert "clients with its tokens cannot connect" in server.log()
