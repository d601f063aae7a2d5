"""Sets a random secret for the tests."""

import os
import secrets

os.environ.setdefault("CHAT_SECRET", secrets.token_hex(32))
