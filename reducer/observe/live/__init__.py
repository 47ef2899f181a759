"""The live view of `reducer top` and of the page on the metrics port: jobs, hosts and events."""
