"""How a rank reaches a reducer: one file per data plane, each with a `ReducerEndpoint`."""
