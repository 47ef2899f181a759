"""Times at which each collective was issued, pushed, summed and delivered: records of ranks, and their analysis.

record.py    the record of one rank, and its file
clocks.py    offsets between the clocks of several hosts
chrome.py    the file for Perfetto and chrome://tracing
verdict.py   where the time went, in words
"""
