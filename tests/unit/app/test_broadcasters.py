"""Broadcast adapters whose library is not installed."""

import re
import sys

import pytest

from ropewalk.app.composition import build
from ropewalk.app.settings import load
from ropewalk.model.errors import UserMistake
from ropewalk.model.extras import install_command


@pytest.mark.parametrize(
    ("adapters", "library", "extra"), [("redisx", "redis", "redis"), ("redis", "redis", "redis"), ("http,nats", "nats", "nats")]
)
def test_missing_library_is_reported_with_the_extra_to_install(
    adapters: str, library: str, extra: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    ours = ("ropewalk.adapters.broadcasters", "ropewalk.connections")
    for name in [name for name in sys.modules if name.partition(".")[0] == library or name.startswith(ours)]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, library, None)
    name = adapters.rpartition(",")[2]
    missing = rf"{name} needs {library}[\w.]*, which is not installed: {re.escape(install_command(extra))}"
    with pytest.raises(UserMistake, match=missing):
        build(load(["--public", f"--broadcast_adapter={adapters}"], {}))
