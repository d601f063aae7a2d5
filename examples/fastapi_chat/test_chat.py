"""How such an application is tested: the web half with a stand-in for Ropewalk, the live half inside the test."""

from unittest.mock import AsyncMock

import channels
import main
import pytest
from chat import COOKIE, cookie_for

import ropewalk
from ropewalk.client import Receipt
from ropewalk.testing import Cable, Rejected

pytestmark = pytest.mark.asyncio


async def test_posted_message_is_published(monkeypatch: pytest.MonkeyPatch) -> None:
    apublish = AsyncMock(return_value=Receipt("chat/lobby", "epoch", 7))
    monkeypatch.setattr(ropewalk, "apublish", apublish)
    assert await main.post_message("lobby", main.NewMessage(text="hi"), "Ada") == {"offset": 7}
    apublish.assert_awaited_once_with("chat/lobby", {"name": "Ada", "text": "hi"})


async def test_spoken_message_is_delivered_to_the_room() -> None:
    async with Cable(channels.app) as cable:
        ada = await cable.connect(cookies={COOKIE: cookie_for("Ada")})
        bo = await cable.connect(cookies={COOKIE: cookie_for("Bo")})
        speaking = await ada.subscribe("ChatChannel", room="lobby")
        hearing = await bo.subscribe("ChatChannel", room="lobby")
        await speaking.perform("speak", text="hi")
        assert await hearing.receive() == {"name": "Ada", "text": "hi"}
        assert set(await hearing.presence()) == {"Ada", "Bo"}


async def test_connection_with_a_forged_cookie_is_rejected() -> None:
    async with Cable(channels.app) as cable:
        with pytest.raises(Rejected):
            await cable.connect(cookies={COOKIE: "forged"})
