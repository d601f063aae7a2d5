"""The pipeline's way to a server with a private certificate: trusted when told so, and said in words when not."""

from pathlib import Path

import pytest

from ropewalk.model.errors import UserMistake
from ropewalk.pipeline.options import Address
from ropewalk.pipeline.wire import Wire
from tests.server import running_server

FIXTURES = Path(__file__).parents[1] / "fixtures"
CERTIFICATE, KEY = FIXTURES / "tls_cert.pem", FIXTURES / "tls_key.pem"


def test_a_private_certificate_is_trusted_when_its_authority_is_named_and_never_tried_again_when_not(tmp_path: Path) -> None:
    flags = ("--public", "--data_dir", str(tmp_path / "data"), "--ssl_cert", str(CERTIFICATE), "--ssl_key", str(KEY))
    with running_server(*flags) as server:
        assert len(Wire(Address(server.url, ca=str(CERTIFICATE))).spans()) == 16
        # So many retries would take longer than anybody waits for a test.
        with pytest.raises(UserMistake, match="caFile"):
            Wire(Address(server.url, retries=10_000)).spans()
        with pytest.raises(UserMistake, match="cannot be read"):
            Wire(Address(server.url, ca=str(tmp_path / "none"), retries=10_000)).spans()
