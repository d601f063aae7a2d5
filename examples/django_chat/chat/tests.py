"""How such an application is tested: views with a stand-in for Ropewalk, channels inside the test. `python manage.py test`."""

from unittest.mock import patch

from django.conf import settings
from django.contrib.auth import get_user_model
from django.test import Client, TestCase, TransactionTestCase

from chat.channels import app
from chat.models import Message
from ropewalk.testing import Cable, Rejected


class MessagesTest(TestCase):
    def setUp(self) -> None:
        self.client.force_login(get_user_model().objects.create(username="Ada"))

    def test_message_is_saved_and_published_after_the_commit(self) -> None:
        with patch("ropewalk.publish") as publish, self.captureOnCommitCallbacks(execute=True):
            answer = self.client.post("/rooms/lobby/messages", {"text": "hi"}, content_type="application/json")
            publish.assert_not_called()
        assert answer.status_code == 201
        message = Message.objects.get()
        publish.assert_called_once_with("chat/lobby", message.shown(), uid=f"message-{message.pk}")

    def test_invalid_message_is_not_published(self) -> None:
        with patch("ropewalk.publish") as publish, self.captureOnCommitCallbacks(execute=True):
            answer = self.client.post("/rooms/lobby/messages", {"text": ""}, content_type="application/json")
        assert answer.status_code == 422
        publish.assert_not_called()


class ChatChannelTest(TransactionTestCase):
    """Handlers run in other threads, which see committed rows only."""

    async def test_spoken_message_is_saved_and_delivered(self) -> None:
        async with Cable(app) as cable:
            ada = await cable.connect(cookies=await log_in_cookies("Ada"))
            chat = await ada.subscribe("ChatChannel", room="lobby")
            await chat.perform("speak", text="hi")
            message = await Message.objects.select_related("author").aget()
            assert await chat.receive() == message.shown()

    async def test_connection_without_a_session_is_rejected(self) -> None:
        async with Cable(app) as cable:
            with self.assertRaises(Rejected):  # noqa: PT027
                await cable.connect(cookies={settings.SESSION_COOKIE_NAME: "forged"})


async def log_in_cookies(name: str) -> dict[str, str]:
    client = Client()
    await client.aforce_login(await get_user_model().objects.acreate(username=name))
    return {settings.SESSION_COOKIE_NAME: client.cookies[settings.SESSION_COOKIE_NAME].value}
