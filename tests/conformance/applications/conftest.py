"""Assertions of the suite's own modules are shown in full, as those of test files are."""

import pytest

PARTS = ("connects", "subscriptions", "actions", "restores", "disconnects", "crashes", "rpc_wire", "sse", "stage")

pytest.register_assert_rewrite(*(f"{__name__.rpartition('.')[0]}.{part}" for part in PARTS))
