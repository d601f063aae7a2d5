"""Chat messages. The database is the source of truth; Ropewalk delivers new messages to open pages."""

import re
from typing import Any

from django.conf import settings
from django.db import models


class Message(models.Model):
    room = models.SlugField(max_length=40)
    author = models.ForeignKey(settings.AUTH_USER_MODEL, on_delete=models.CASCADE)
    text = models.CharField(max_length=2000)
    said_at = models.DateTimeField(auto_now_add=True)

    @property
    def stream(self) -> str:
        return room_stream(self.room)

    @property
    def uid(self) -> str:
        """The idempotency key: publishing the message again does not duplicate it."""
        return f"message-{self.pk}"

    def shown(self) -> dict[str, Any]:
        return {"id": self.pk, "name": self.author.get_username(), "text": self.text, "said_at": self.said_at.isoformat()}


def is_room(name: object) -> bool:
    return isinstance(name, str) and re.fullmatch(r"[-\w]{1,40}", name, re.ASCII) is not None


def room_stream(room: str) -> str:
    return f"chat/{room}"
