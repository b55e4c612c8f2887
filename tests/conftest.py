"""Asserts of the helpers that tests import say what they compared, like those of tests."""

import pytest

pytest.register_assert_rewrite("support")
