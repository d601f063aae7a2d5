"""A process that a supervisor has started: it tells when it serves, follows orders, and ends when it is left alone.

Invariant: whoever is left alone ends by itself. Workers end at once, as if they were killed too. The store ends last and in
order: it seals the journal.
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
"""Within which workers end that were left alone."""


class Supervised:
    """`attach`, then `ready` or `failed`; `detach` as the last thing."""

    def __init__(self, role: Role) -> None:
        self._role = role
        self._channel = ControlChannel(socket.socket(fileno=role.control))
        self._orphaned = False

    def attach(self, server: Server) -> None:
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
            if self._role.kind is not ProcessKind.STORE:
                os._exit(1)
            self._outlive_workers(server)

        self._channel.watch(heard, orphaned)

    def ready(self) -> None:
        self._channel.say(Ready())

    def failed(self, reason: str) -> None:
        self._channel.say(Failed(reason))

    def detach(self) -> None:
        if self._orphaned and self._role.kind is ProcessKind.STORE:
            shutil.rmtree(self._role.directory, ignore_errors=True)  # nobody else is left to do it

    def _outlive_workers(self, server: Server) -> None:
        loop, others = asyncio.get_running_loop(), self._role.others
        os.set_blocking(others, False)

        def alone() -> None:
            loop.remove_reader(others)
            server.leave()

        loop.add_reader(others, alone)  # nobody writes there: it can be read when all who could are gone
        loop.call_later(SPARE_SECONDS, server.leave)
