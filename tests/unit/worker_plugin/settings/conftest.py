"""Shared fixtures for the tests of settings."""

import pytest

from worker_plugin.settings import environment


@pytest.fixture
def nobody_warned(monkeypatch):
    """Reset the set of variables that have been warned about."""
    monkeypatch.setattr(environment, "_warned", set())
