"""The subcommands of `reducer`, one file each."""
