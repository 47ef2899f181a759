"""Diagnosis of reducers: whether they can be used from here, how fast, and what to fix first."""
