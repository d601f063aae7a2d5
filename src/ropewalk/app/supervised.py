"""A process that a supervisor has started: it tells when it serves, follows orders, and ends in order when it is left alone.

Invariant: whoever is left alone ends by itself. The store ends last, for the workers save their sessions there.
"""

import asyncio
import logging
import os
import shutil
import socket

from ropewalk.app.control_channel import Alive, ControlChannel, Failed, ProcessOrder, Ready, Word
from ropewalk.app.process_role import ProcessKind, Role
from ropewalk.app.server import Server

logger = logging.getLogger("ropewalk.server")

SPARE_SECONDS = 5.0
"""Beyond --shutdown_timeout, within which workers end."""


class Supervised:
    """`attach`, then `ready` or `failed`; `detach` as the last thing."""

    def __init__(self, role: Role) -> None:
        self._role = role
        self._channel = ControlChannel(socket.socket(fileno=role.control))
        self._orphaned = False

    def attach(self, server: Server, shutdown_timeout: float) -> None:
        """`shutdown_timeout`: how long workers may take to end."""

        def heard(word: Word) -> None:
            if word is ProcessOrder.STOP:
                server.leave()
            elif word is ProcessOrder.SERVER_ENDS:
                server.ends_for_good()
            elif word is ProcessOrder.STOP_LISTENING:
                server.stop_listening()
            elif word is ProcessOrder.RELOAD:
                server.reload()
            elif word is ProcessOrder.ANSWER:
                self._channel.say(Alive())

        def orphaned() -> None:
            logger.error("the supervisor is gone; stopping")
            self._orphaned = True
            if self._role.kind is ProcessKind.STORE:
                self._outlive_workers(server, shutdown_timeout + SPARE_SECONDS)
            else:
                server.ends_for_good()
                server.leave()
                asyncio.get_running_loop().call_later(shutdown_timeout + SPARE_SECONDS, os._exit, 1)

        self._channel.watch(heard, orphaned)

    def ready(self) -> None:
        self._channel.say(Ready())

    def failed(self, reason: str) -> None:
        self._channel.say(Failed(reason))

    def detach(self) -> None:
        if self._orphaned and self._role.kind is ProcessKind.STORE:
            shutil.rmtree(self._role.directory, ignore_errors=True)  # nobody else is left to do it

    def _outlive_workers(self, server: Server, longest: float) -> None:
        loop, others = asyncio.get_running_loop(), self._role.others
        os.set_blocking(others, False)

        def alone() -> None:
            loop.remove_reader(others)
            server.leave()

        loop.add_reader(others, alone)  # nobody writes there: it can be read when all who could are gone
        loop.call_later(longest, server.leave)
