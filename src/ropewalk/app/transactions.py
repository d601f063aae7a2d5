"""Transactions of a server with a journal, and the endpoints that only such a server has."""

import time
from functools import partial
from pathlib import Path

from aiohttp import web

from ropewalk.adapters.endpoints.consumers import ConsumersEndpoint
from ropewalk.adapters.endpoints.journal import JournalEndpoint
from ropewalk.adapters.endpoints.transactions import TransactionsEndpoint
from ropewalk.adapters.staging.files import FileStaging
from ropewalk.app.journal import StoredJournal
from ropewalk.app.registry import ROW_READERS, resolve
from ropewalk.app.settings import Settings
from ropewalk.core.bearer import KeyGuard
from ropewalk.core.transactions import Ledger
from ropewalk.engine.transactions import Transactions
from ropewalk.model.transactions import StagingLimits
from ropewalk.ports import Publisher, RowReader
from ropewalk.protocol.publications import PublicationLimits

JOURNAL_PATH = "/journal"
DIRECTORY = "transactions"


def transactions_of(settings: Settings, publisher: Publisher) -> Transactions | None:
    """None without a place to keep them: a transaction that does not outlive a crash would be none."""
    journal, limits = settings.journal, settings.limits
    if not journal.data_dir:
        return None
    bounds = PublicationLimits(limits.max_stream_name, limits.max_publish_batch, limits.max_publish_size)
    read_rows: RowReader = partial(resolve(ROW_READERS, "journal"), limits=bounds)
    # An application's own share is a half, so that one alone cannot keep all others from staging.
    staging = StagingLimits(max_bytes=journal.staging_size, max_app_bytes=journal.staging_size // 2)
    return Transactions(publisher, FileStaging(Path(journal.data_dir) / DIRECTORY), read_rows, Ledger(staging), time.time)


def journal_routes(
    settings: Settings, journal: StoredJournal, transactions: Transactions, guard: KeyGuard
) -> list[web.RouteDef]:
    endpoint = TransactionsEndpoint(transactions, guard, settings.journal.max_stage_size)
    consumers = ConsumersEndpoint(journal, journal, guard)
    return [
        *JournalEndpoint(journal, guard).routes(JOURNAL_PATH),
        *consumers.routes(JOURNAL_PATH),
        *endpoint.routes(JOURNAL_PATH),
    ]
