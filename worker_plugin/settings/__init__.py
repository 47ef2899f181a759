"""Settings for users: kinds of settings, their table, variables, and forms of addresses."""
