"""A node with a session log in a fake journal. Tests crash it and inspect the state of the next one."""

import json
from typing import Any

from ropewalk.adapters.apps.authenticators import NoAuth
from ropewalk.adapters.backends.memory import MemoryBackend
from ropewalk.core.rules import Rulebook
from ropewalk.engine.session_log import JournalSessionLog
from ropewalk.model.journal import Recovered, RowKind
from ropewalk.model.limits import Limits, StoreLimits
from ropewalk.model.rules import StreamRules
from tests.unit.adapters.backends.fake_journal import FakeJournal
from tests.unit.engine.script import Script
from tests.unit.engine.workbench import Client, Clock, Workbench, public

PATIENT = Limits(ping_interval=0, resume_timeout=3600, sessions_ttl=300, presence_ttl=15, disconnect_rate=0)


class JournaledNode:
    """A node that writes a session log, with a backend over the same journal."""

    def __init__(self, clock: Clock | None = None, script: Script | None = None, max_session_size: int = 128 * 1024) -> None:
        self.script = script
        self.journal = FakeJournal(instant=True)
        self.clock = clock or Clock()
        self.backend = MemoryBackend(
            Rulebook(StreamRules()), self.clock, StoreLimits(max_session_size=max_session_size), self.journal
        )
        self.bench = Workbench(
            PATIENT,
            authenticators=(NoAuth(),) if script is None else (),
            backend=self.backend,
            session_log=self.session_log(self.journal, self.clock),
            clock=self.clock,
            application=script,
        )

    @staticmethod
    def session_log(journal: FakeJournal, clock: Clock) -> JournalSessionLog:
        return JournalSessionLog(journal, clock)

    async def client(self, *streams: str, extended: bool = True) -> Client:
        client = await self.bench.connect(extended=extended)
        for stream in streams:
            await client.send(command="subscribe", identifier=public(stream))
        return client

    def kinds(self, client: Client) -> list[RowKind]:
        return [row.kind for row in self.journal.rows if row.sid == client.sid]

    def details(self, kind: RowKind) -> list[Any]:
        return [json.loads(row.detail) for row in self.journal.rows if row.kind is kind]

    async def __aenter__(self) -> "JournaledNode":
        await self.bench.node.start()
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        await self.bench.node.stop()

    def crash(self) -> "JournaledNode":
        """Return the next process, which recovers from the rows written so far."""
        after = JournaledNode(self.clock, self.script)
        recovered = Recovered(rows=list(self.journal.rows), newest=self.clock.now)
        restored = after.backend.recover(recovered, PATIENT.sessions_ttl, PATIENT.presence_ttl)
        after.journal.write_nowait([*self.journal.rows, *restored.interrupted])
        return after

    async def members(self, stream: str) -> list[str]:
        return [member.id for member in (await self.backend.presence.members(stream, "", 10)).members]
