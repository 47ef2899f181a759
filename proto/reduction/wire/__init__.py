"""Frames as bytes: the schema's encoding, its bounds, and checksums."""
