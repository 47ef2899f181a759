"""Measurements, and the demo. Not part of the wheel; see README.md in this folder."""
