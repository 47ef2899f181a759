"""How is measured: contenders in turn, rows, records, tables."""
