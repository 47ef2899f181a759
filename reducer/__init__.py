"""The CPU process that owns shards and sums the workers' pushes."""
