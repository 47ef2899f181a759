"""What rides on the sums: a few more numbers in them tell all ranks the same thing in the same step."""
