"""One aspect each, in a minute, on one machine."""
