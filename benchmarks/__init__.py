"""Measurements and the demo. They are not part of the wheel; see README.md in this folder."""
