"""A run as publications: names for its keys, JSON text for its payloads. All of a run can be registered, or nothing of it."""

from itertools import repeat

from ropewalk.model.errors import MalformedPublication
from ropewalk.model.messages import Publication
from ropewalk.protocol.broky.frames import Run
from ropewalk.protocol.broky.ksuid import KSUID_BYTES, ksuid_text
from ropewalk.protocol.broky.runs import payloads_of
from ropewalk.protocol.broky.texts import text_of
from ropewalk.protocol.publications import PublicationLimits, stream_of
from ropewalk.protocol.stream_keys import name_of


def publications_of(run: Run, limits: PublicationLimits) -> list[Publication]:
    """Of a run that was checked. Raises MalformedPublication."""
    if run.count > limits.max_batch:
        raise MalformedPublication(f"a run of more than {limits.max_batch} messages", limits.max_batch)
    stream = stream_of(name_of(run.key), limits.max_stream_name, 0)
    partition = name_of(run.key_partition)
    if len(partition.encode()) > limits.max_stream_name:
        raise MalformedPublication(f"key_partition is longer than {limits.max_stream_name} bytes")
    return [
        Publication(stream, _text(run, payload, index, limits), uid=_uid(run, index), partition_key=partition, ts_producer=time)
        for index, (payload, time) in enumerate(zip(payloads_of(run), run.ts_producer or repeat(0), strict=False))
    ]


def _text(run: Run, payload: bytes, index: int, limits: PublicationLimits) -> bytes:
    try:
        text = text_of(payload, run.format)
    except ValueError as error:
        raise MalformedPublication(str(error), index) from None
    if len(text) > limits.max_publish_size:
        raise MalformedPublication(f"a message that takes more than {limits.max_publish_size} bytes as text", index)
    return text


def _uid(run: Run, index: int) -> str:
    return ksuid_text(run.uid[index * KSUID_BYTES : (index + 1) * KSUID_BYTES]) if run.uid else ""
