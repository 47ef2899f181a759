"""What a rank does while it is measured."""
