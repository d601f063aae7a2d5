"""Rewrite the assertions of the suite's own modules too, so that failures show their values."""

import pytest

PARTS = ("connects", "subscriptions", "actions", "restores", "disconnects", "crashes", "rpc_wire", "sse", "stage")

pytest.register_assert_rewrite(*(f"{__name__.rpartition('.')[0]}.{part}" for part in PARTS))
