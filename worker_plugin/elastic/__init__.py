"""Training that continues when a worker leaves or dies, and that admits new ones: see docs/elastic.md."""
