"""Client side of a reducer on both planes, used by ranks and by `reducer doctor`."""
