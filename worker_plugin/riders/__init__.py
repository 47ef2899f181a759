"""Extra values in the sums that tell all ranks the same thing in the same step."""
