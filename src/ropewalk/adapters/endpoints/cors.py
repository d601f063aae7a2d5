"""CORS headers: what a browser needs before a page of another origin may read a response."""

from typing import Protocol


class OriginAllowed(Protocol):
    """Whether a request with this Origin header (None: without one) may be answered; `everyone`: of any origin."""

    @property
    def everyone(self) -> bool: ...
    def __call__(self, origin: str | None) -> bool: ...


def cors_headers(origin: str | None, origin_allowed: OriginAllowed, methods: str, asked_headers: str = "") -> dict[str, str]:
    """For an origin that is allowed already.

    Without a list of allowed origins, or with `*` in it, every page may read, but without the browser's credentials;
    otherwise any page at all could read what a cookie opens. With a list, the named origin may use them.
    """
    if origin is None:
        return {}
    headers = {"Access-Control-Allow-Methods": methods}
    if asked_headers:
        headers["Access-Control-Allow-Headers"] = asked_headers
    if origin_allowed.everyone:
        return {"Access-Control-Allow-Origin": "*", **headers}
    return {
        "Access-Control-Allow-Origin": origin,
        "Access-Control-Allow-Credentials": "true",
        "Vary": "Origin",
        **headers,
    }
