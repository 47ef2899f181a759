"""A user's own script on the hosts of the lab: its processes, its steps, and their evaluation."""
