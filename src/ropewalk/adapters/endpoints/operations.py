"""Endpoints for operators: health and metrics. Both answer without touching the backend."""

from collections.abc import Callable

from ropewalk.adapters.endpoints.http_requests import HttpRequest
from ropewalk.adapters.endpoints.http_responses import HttpResponse, encode_fields, json_answer
from ropewalk.adapters.endpoints.routes import ANY, HttpRoute
from ropewalk.ports import Inspector


class OperationsEndpoint:
    """`exposition` renders the metrics page when asked; `exposition_type` is its Content-Type."""

    def __init__(self, inspector: Inspector, exposition: Callable[[], bytes], exposition_type: str) -> None:
        self._inspector = inspector
        self._exposition = exposition
        self._exposition_type = exposition_type

    def routes(self, health_path: str = "/health", metrics_path: str = "/metrics") -> list[HttpRoute]:
        # Checkers differ in the method they use, so health answers all of them.
        probes = health_path.rstrip("/")
        metrics = [HttpRoute("GET", metrics_path, self.metrics)] if metrics_path else []
        return [
            HttpRoute(ANY, health_path, self.health),
            HttpRoute(ANY, f"{probes}/live", self.live),
            HttpRoute(ANY, f"{probes}/ready", self.health),
            *metrics,
        ]

    async def live(self, request: HttpRequest) -> HttpResponse:
        """Any answer shows that the process is alive. A failed dependency is not a reason to restart it."""
        return json_answer(200, {"status": "ok"})

    async def health(self, request: HttpRequest) -> HttpResponse:
        """An impaired node is still healthy: redirected clients would find the same impairment on other nodes."""
        report = self._inspector.report()
        if report.problems:
            return json_answer(503, {"status": "down", "reasons": report.problems})
        return json_answer(200, {"status": "ok", **({"impaired": report.impairments} if report.impairments else {})})

    async def metrics(self, request: HttpRequest) -> HttpResponse:
        return HttpResponse(200, self._exposition(), encode_fields({"Content-Type": self._exposition_type}))
