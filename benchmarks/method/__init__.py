"""The method of measuring: contenders in turn, rows, records and tables."""
