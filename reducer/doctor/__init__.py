"""Whether reducers can be used from here, how fast, and what to mend first."""
