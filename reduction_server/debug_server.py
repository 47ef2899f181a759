"""Pages for torch's debug server."""

from worker_plugin.integrations.debug_server import handlers

__all__ = ["handlers"]
