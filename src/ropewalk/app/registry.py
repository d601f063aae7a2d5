"""Adapters by name, as strings, imported late: an extra that is not installed costs nothing until it is chosen."""

from importlib import import_module

from ropewalk.model.errors import UserMistake
from ropewalk.model.extras import install_command

BACKENDS = {
    "memory": "ropewalk.adapters.backends.memory:MemoryBackend",
    "nats": "ropewalk.adapters.backends.nats:NatsBackend",
    "nats options": "ropewalk.adapters.backends.nats.names:NatsOptions",
    "redis": "ropewalk.adapters.backends.redis:RedisBackend",
    "redis options": "ropewalk.adapters.backends.redis:RedisOptions",
    "ring": "ropewalk.adapters.backends.ring.backend:RingBackend",
    "ring dialler": "ropewalk.adapters.backends.ring.links:NodeDialler",
    "ring port": "ropewalk.adapters.backends.ring.port:RingPort",
    "ring process name": "ropewalk.adapters.backends.ring.calls:process_name",
    "ring worker name": "ropewalk.adapters.backends.ring.access:worker_name",
    "ring worker": "ropewalk.adapters.backends.ring.access:RingWorkerBackend",
    "bus": "ropewalk.adapters.backends.workers.server:StoreServer",
    "link": "ropewalk.adapters.backends.workers.link:ReportLink",
    "engine": "ropewalk.adapters.backends.workers.backend:BackendBesideEngine",
    "own store": "ropewalk.adapters.backends.workers.backend:StoreBackend",
    "store options": "ropewalk.adapters.backends.memory.store:StoreOptions",
    "store": "ropewalk.adapters.backends.workers.store:SharedStore",
    "worker": "ropewalk.adapters.backends.workers.backend:WorkerBackend",
}
CONNECTIONS = {
    "nats": "ropewalk.connections.nats:NatsAddress",
    "redis": "ropewalk.connections.redis:RedisAddress",
}
JOURNALS = {
    "none": "ropewalk.adapters.journals.none:NoJournal",
    "journal": "ropewalk.adapters.journals.arrow:ArrowJournal",
}
JOURNAL_FILES = {"journal": "ropewalk.adapters.journals.arrow.maintenance:JournalFiles"}
ROW_READERS = {"journal": "ropewalk.adapters.staging.arrow:ArrowRows"}
ARCHIVES = {"archive": "ropewalk.adapters.archives.delta:DeltaArchive"}
APPLICATIONS = {
    "python": "ropewalk.adapters.apps.python.application:PythonApplication",
    "python app": "ropewalk.adapters.apps.python.loader:load_from",
    "calls": "ropewalk.adapters.apps.rpc.calls:Calls",
    "http": "ropewalk.adapters.apps.rpc.http:HttpApplication",
    "grpc": "ropewalk.adapters.apps.rpc.grpc:GrpcApplication",
    "grpc options": "ropewalk.adapters.apps.rpc.grpc:GrpcOptions",
}
BROADCASTERS = {
    "redisx": "ropewalk.adapters.broadcasters.redis_streams:RedisStreamsBroadcaster",
    "redisx group": "ropewalk.adapters.broadcasters.redis_streams:ConsumerGroup",
    "redis": "ropewalk.adapters.broadcasters.redis_channel:RedisChannelBroadcaster",
    "nats": "ropewalk.adapters.broadcasters.nats_subject:NatsBroadcaster",
}


def resolve(table: dict[str, str], name: str, extra: str = "") -> type:
    """The class behind a name. The error of a missing library names the extra to install, by default one of that name."""
    module, _, attribute = table[name].partition(":")
    try:
        found: type = getattr(import_module(module), attribute)
    except ModuleNotFoundError as error:
        raise UserMistake(f"{name} needs {error.name}, which is not installed: {install_command(extra or name)}") from None
    return found
