"""The CPU process that owns shards and sums what the workers push."""
