"""Revocations of sessions that are opening."""

from ropewalk.engine.session_table import Revocations
from ropewalk.model.messages import RemoteDisconnect

BO = RemoteDisconnect("bo", reconnect=False)


def test_revocations_are_kept_for_sessions_that_were_opening_before_them() -> None:
    revocations = Revocations()
    revocations.add(BO)
    assert len(revocations) == 0  # no session is opening
    revocations.opening("early")
    revocations.add(BO)
    revocations.opening("middle")
    revocations.add(RemoteDisconnect("eve"))
    revocations.opening("late")
    assert revocations.order_for("early", "bo") == BO
    assert [revocations.order_for(sid, "bo") for sid in ("middle", "late", "unknown")] == [None] * 3
    assert [revocations.order_for(sid, "eve") is not None for sid in ("early", "middle", "late")] == [True, True, False]
    revocations.opened("early")
    assert len(revocations) == 1
    revocations.add(RemoteDisconnect("eve", reconnect=False))
    assert revocations.order_for("late", "eve") == RemoteDisconnect("eve", reconnect=False)
    revocations.opened("late")
    revocations.opened("middle")
    assert len(revocations) == 0
