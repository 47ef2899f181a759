"""A rank's messages while it waits, and when it gives up."""
