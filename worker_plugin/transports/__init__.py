"""How a rank reaches a reducer; one file per data plane, each a `ReducerEndpoint`."""
