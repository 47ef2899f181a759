"""Processes of both sides: file descriptors, how to start a reducer, and reuse of memory."""
