"""The store process of a server with several workers: it alone has the journal, the embedded NATS and the pub/sub adapters."""

import contextlib
import io
import json
import os
import signal
from pathlib import Path

import aiohttp

from tests.arrow_rows import rows_body
from tests.process_tree import store
from tests.server import publish, running_server
from tests.services import RedisServer, nats_server
from tests.tcp import tcp
from tests.waiting import until, until_logged
from tests.worker_clients import one_client_at_each


def redis_flags(redis: RedisServer) -> tuple[str, ...]:
    redis.ask("FLUSHALL")
    return ("--broker", "redis", "--redis_url", redis.url, "--workers", "2")


async def test_journal_is_read_and_written_through_any_worker(redis: RedisServer, tmp_path: Path) -> None:
    token = "journal token of some length"
    size = 4 << 20
    secured = ("--journal_token", token, "--noauth", "--data_dir", str(tmp_path), "--max_stage_size", str(size))
    with running_server(*redis_flags(redis), *secured) as server:
        async with aiohttp.ClientSession(server.url) as http, http.get("/journal") as response:
            assert (response.status, response.headers["WWW-Authenticate"]) == (401, "Bearer")
        async with aiohttp.ClientSession(server.url, headers={"Authorization": f"Bearer {token}"}) as http:
            body = rows_body(*[("s", json.dumps("x" * 1000))] * 2000)
            assert size > len(body) > 1 << 20
            path = "/journal/transactions/app/0"
            async with http.post(f"{path}/stage?part=0&attempt=0&seq=0", data=io.BytesIO(body)) as response:
                assert response.status == 200, await response.text()
            async with http.post(f"{path}/commit", json={"winners": {"0": 0}}) as response:
                assert response.status == 200, await response.text()
            async with http.post(f"{path}/stage?part=0&attempt=0&seq=0", data=io.BytesIO(bytes(size + 1))) as response:
                assert response.status == 413
            async with http.get("/journal/transactions/app") as response:
                assert await response.json() == {"last": 0}
            async with http.delete("/journal/consumers/unknown") as response:
                assert (response.status, "unknown" in (await response.json())["error"]) == (404, True)
            async with http.patch("/journal") as response:
                assert (response.status, response.headers["Allow"]) == (405, "GET, HEAD")

            async def all_rows_are_in_the_journal() -> bool:
                async with http.get("/journal") as response:
                    spans = (await response.json())["spans"]
                return int(sum(span["end"] - span["first"] for span in spans)) >= 2000

            await until(all_rows_are_in_the_journal)
            async with tcp(server) as link:
                await link.send(b"POST /journal/publications HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n")
                await link.send(f"Authorization: Bearer {token}\r\n\r\n1\r\nx\r\nno number\r\n".encode())
                assert (await link.response())[0] == 400

            async def journal_status() -> int:
                async with http.get("/journal") as response:
                    answer = await response.json()
                    assert "spans" in answer if response.status == 200 else "store" in answer["error"], answer
                    return response.status

            async def is_unavailable() -> bool:
                return await journal_status() == 503

            async def is_served() -> bool:
                return await journal_status() == 200

            killed = store(server)
            server.process.send_signal(signal.SIGSTOP)  # the supervisor, so that it does not start the store again yet
            try:
                os.kill(killed, signal.SIGKILL)
                await until(is_unavailable)
            finally:
                server.process.send_signal(signal.SIGCONT)
            await until(is_served)


async def test_workers_use_the_embedded_nats_server_of_the_store_process_which_keeps_its_port() -> None:
    flags = ("--public", "--broker", "nats", "--embed_nats", "--enats_addr", "nats://127.0.0.1:0", "--workers", "2")
    with running_server(*flags) as server:
        assert server.log().count("nats-server is up") == 1
        async with one_client_at_each(server) as clients:
            for client in clients.values():
                await client.subscribe("s")
            await publish(server, "s", "1")
            for client in clients.values():
                assert await client.messages(1) == [1]
            os.kill(store(server), signal.SIGKILL)
            await until_logged(server, "store serves again")

            async def published() -> bool:
                with contextlib.suppress(AssertionError):  # 503
                    return bool(await publish(server, "s", "2", uid="2"))
                return False

            await until(published)
            for client in clients.values():
                assert await client.messages(1) == [2]


async def test_message_from_a_pubsub_adapter_is_delivered_once_to_the_clients_of_each_worker(redis: RedisServer) -> None:
    adapters = ("--public", "--broadcast_adapter", "redis,redisx,nats")
    with nats_server() as nats, running_server(*redis_flags(redis), *adapters, "--nats_servers", nats.url) as server:
        async with one_client_at_each(server) as clients:
            for client in clients.values():
                await client.subscribe("s")
            redis.ask("PUBLISH", "__anycable__", json.dumps({"stream": "s", "data": "1"}))
            for client in clients.values():
                assert await client.messages(1) == [1]
            redis.ask("XADD", "__anycable__", "*", "payload", json.dumps({"stream": "s", "data": "2"}))
            for client in clients.values():
                assert await client.messages(1) == [2]
                await client.quiet()
        assert len(redis.ask("XINFO", "CONSUMERS", "__anycable__", "bx")) == 1  # the store process reads for all
        assert redis.ask("PUBSUB", "NUMSUB", "__anycable__") == ["__anycable__", 2]
