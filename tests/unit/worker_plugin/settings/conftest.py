"""What tests of settings share."""

import pytest

from worker_plugin.settings import environment


@pytest.fixture
def nobody_warned(monkeypatch):
    """No variable has been warned of yet."""
    monkeypatch.setattr(environment, "_warned", set())
