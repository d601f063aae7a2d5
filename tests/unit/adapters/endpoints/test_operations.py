"""Health and metrics over a real socket."""

from collections.abc import AsyncIterator

import pytest

from ropewalk.adapters.endpoints.operations import OperationsEndpoint
from ropewalk.model.report import NodeReport
from tests.unit.adapters.http_server import Client, serving


class FakeNode:
    """A node with the problems that the test sets."""

    def __init__(self) -> None:
        self.problems: list[str] = []

    def report(self) -> NodeReport:
        return NodeReport(problems=tuple(self.problems))


@pytest.fixture
def node() -> FakeNode:
    return FakeNode()


@pytest.fixture
async def client(node: FakeNode) -> AsyncIterator[Client]:
    async with serving(OperationsEndpoint(node, lambda: b"a_metric 1\n", "text/plain; version=9").routes()) as client:
        yield client


async def test_node_without_problems_is_healthy(client: Client, subtests: pytest.Subtests) -> None:
    for method in ["GET", "POST", "PUT"]:
        with subtests.test(method=method):
            async with client.request(method, "/health") as response:
                assert response.status == 200
                assert await response.json() == {"status": "ok"}


async def test_node_with_problems_lists_them_until_they_end(client: Client, node: FakeNode) -> None:
    node.problems = ["the store is away"]
    async with client.get("/health") as response:
        assert response.status == 503
        assert await response.json() == {"status": "down", "reasons": ["the store is away"]}
    node.problems = []
    assert (await client.get("/health")).status == 200


async def test_node_with_problems_is_live_and_not_ready(client: Client, node: FakeNode) -> None:
    for problems, ready in (["the store is away"], 503), ([], 200):
        node.problems = problems
        assert (await client.get("/health/live")).status == 200
        assert (await client.get("/health/ready")).status == ready


async def test_metrics_page_has_the_rendered_content_and_type(client: Client) -> None:
    async with client.get("/metrics") as response:
        assert response.status == 200
        assert response.headers["Content-Type"] == "text/plain; version=9"
        assert await response.read() == b"a_metric 1\n"


async def test_metrics_allow_get_only(client: Client) -> None:
    assert (await client.post("/metrics")).status == 405


async def test_metrics_with_an_empty_path_are_disabled(node: FakeNode) -> None:
    async with serving(OperationsEndpoint(node, lambda: b"", "text/plain").routes(metrics_path="")) as client:
        assert (await client.get("/health")).status == 200
        assert (await client.get("/metrics")).status == 404
