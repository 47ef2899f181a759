"""Training that goes on when a worker goes, and takes in one that comes: see docs/elastic.md."""
