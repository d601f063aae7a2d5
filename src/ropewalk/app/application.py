"""The application behind the server, as the settings name it: Python channels, RPC over gRPC or HTTP, or none."""

from ropewalk.app.keys import Keys
from ropewalk.app.registry import APPLICATIONS, resolve
from ropewalk.app.settings import Settings, has_application
from ropewalk.core.forwarding import Forwarding
from ropewalk.core.stats import Stats
from ropewalk.ports import Application

HTTP_SCHEMES = ("http://", "https://")


def application_of(settings: Settings, keys: Keys, stats: Stats) -> Application | None:
    """Raises UserMistake for one that cannot be loaded or named."""
    app = settings.app
    if app.app:
        return _python(settings, stats)
    if not has_application(settings):
        return None
    calls = resolve(APPLICATIONS, "calls")(
        stats,
        concurrency=app.rpc_concurrency,
        command_timeout=app.rpc_command_timeout,
        request_timeout=app.rpc_request_timeout,
        wait_timeout=app.app_wait_timeout,
    )
    application: Application
    if app.rpc_host.startswith(HTTP_SCHEMES):
        application = resolve(APPLICATIONS, "http")(
            app.rpc_host, keys.rpc, calls, restore=app.rpc_restore, tls_root_ca=app.rpc_tls_root_ca
        )
        return application
    application = resolve(APPLICATIONS, "grpc")(
        app.rpc_host,
        calls,
        restore=app.rpc_restore,
        tls=app.rpc_enable_tls,
        tls_root_ca=app.rpc_tls_root_ca,
        max_recv=app.rpc_max_call_recv_size,
        max_send=app.rpc_max_call_send_size,
    )
    return application


def _python(settings: Settings, stats: Stats) -> Application:
    app = settings.app
    application: Application = resolve(APPLICATIONS, "python")(
        app.app,
        stats,
        directory=app.app_dir,
        threads=app.app_threads,
        timeout=app.app_timeout,
        wait_timeout=app.app_wait_timeout,
        reload=app.app_reload,
    )
    return application


def forwarding_of(settings: Settings, keys: Keys) -> Forwarding:
    token = f"x-{settings.auth.jwt_param.lower()}" if keys.jwt else ""
    return Forwarding(settings.app.headers, settings.app.proxy_cookies, token)
