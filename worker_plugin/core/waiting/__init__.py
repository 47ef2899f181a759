"""What a rank says while it waits, and when it gives up."""
