"""Ropewalk: a real-time message server with reliable streams, resumable sessions and presence."""

from typing import TYPE_CHECKING

from ropewalk.lazy import exports

__version__ = "0.1.0"

if TYPE_CHECKING:
    from ropewalk.channels import ActionError as ActionError
    from ropewalk.channels import App as App
    from ropewalk.channels import Channel as Channel
    from ropewalk.channels import Connection as Connection
    from ropewalk.channels import action as action
    from ropewalk.client.direct import aclose as aclose
    from ropewalk.client.direct import apublish as apublish
    from ropewalk.client.direct import apublish_batch as apublish_batch
    from ropewalk.client.direct import configure as configure
    from ropewalk.client.direct import publish as publish
    from ropewalk.client.direct import publish_batch as publish_batch
    from ropewalk.client.publish_request import Draft as Draft
else:
    # Imported when first asked for: who wants one of them does not pay for the others, and `ropewalk --version` for none.
    __getattr__, __dir__ = exports(
        globals(),
        {
            "ActionError": "ropewalk.channels",
            "App": "ropewalk.channels",
            "Channel": "ropewalk.channels",
            "Connection": "ropewalk.channels",
            "Draft": "ropewalk.client.publish_request",
            "aclose": "ropewalk.client.direct",
            "action": "ropewalk.channels",
            "apublish": "ropewalk.client.direct",
            "apublish_batch": "ropewalk.client.direct",
            "configure": "ropewalk.client.direct",
            "publish": "ropewalk.client.direct",
            "publish_batch": "ropewalk.client.direct",
        },
    )
