"""Tests need a secret, too, but nobody needs to know it."""

import os
import secrets

os.environ.setdefault("CHAT_SECRET", secrets.token_hex(32))
