"""What a rank writes down of its latest collectives, and when it becomes a file."""
