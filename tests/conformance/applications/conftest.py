"""Assertions of the suite's own modules are shown in full, as those of test files are."""

import pytest

pytest.register_assert_rewrite(__name__.rpartition(".")[0])
