"""A rank's record of its latest collectives, and when it is written to a file."""
