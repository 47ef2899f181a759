"""What `reducer top` and the page on the metrics port show: jobs, hosts and events, look after look."""
