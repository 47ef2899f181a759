"""The machines: rank and reducer processes, hosts, shaped links, and what is known of them."""
