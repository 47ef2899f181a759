"""When each collective was issued, pushed, summed and delivered: what ranks record, and what is read from it.

record.py    what one rank writes down, and its file
clocks.py    how far the clocks of several hosts are apart
chrome.py    the file that Perfetto and chrome://tracing show
verdict.py   where the time went, in words
"""
