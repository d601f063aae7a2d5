"""Without authentication every connection is accepted and identified by its sid."""

import json

from ropewalk.adapters.apps.noauth import NoAuth
from ropewalk.testing.auth import request_with


async def test_connection_is_identified_by_its_sid() -> None:
    answer = await NoAuth().authenticate(request_with(""), "abc123")
    assert answer.ids == '{"sid":"abc123"}'
    assert answer.expires_at is None


async def test_special_characters_in_a_sid_are_escaped() -> None:
    answer = await NoAuth().authenticate(request_with("any token at all"), 'a"b\\')
    assert json.loads(answer.ids) == {"sid": 'a"b\\'}
