"""The options of the format ropewalk_archive, read once from Spark's strings. A name nobody knows is an error, not a no-op."""

import os
from collections.abc import Mapping

from msgspec import Struct

from ropewalk.model.errors import UserMistake
from ropewalk.pipeline.options import TOKEN_VARIABLE, Address, local_path

_OURS = {"path", "url", "token", "cafile", "txnappid"}
_SPARKS = {"checkpointlocation", "queryname", "outputmode"}


class ArchiveOptions(Struct, frozen=True):
    """`root`: the table's directory. `server`: who is told what need not be kept any more; None tells nobody.

    `app` names the writer in the table's transactions; "" takes the query's id, which lives in its checkpoint. `checkpoint` is
    the query's, "" where Spark does not tell it.
    """

    root: str
    server: Address | None = None
    app: str = ""
    checkpoint: str = ""


def archive_options(given: Mapping[str, str]) -> ArchiveOptions:
    """Raises UserMistake that names the option."""
    options = {name.lower(): value.strip() for name, value in given.items()}
    unknown = sorted(options.keys() - _OURS - _SPARKS)
    if unknown:
        raise UserMistake(
            f"the format ropewalk_archive has no option {unknown[0]!r}; it has path, url, token, caFile, txnAppId"
        )
    if not options.get("path"):
        raise UserMistake("the format ropewalk_archive needs the option path: the directory of the archive's table")
    return ArchiveOptions(
        local_path(options["path"]),
        _server(options),
        options.get("txnappid", ""),
        options.get("checkpointlocation", ""),
    )


def _server(options: Mapping[str, str]) -> Address | None:
    """Asked once: what it does not hear now it hears after the next batch."""
    if not (url := options.get("url", "").rstrip("/")):
        return None
    token = options.get("token", os.environ.get(TOKEN_VARIABLE, ""))
    return Address(url, token, retries=0, ca=options.get("cafile", ""))
