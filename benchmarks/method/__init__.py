"""The measurement method: contenders that take turns, rows, records and tables."""
