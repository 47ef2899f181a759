"""An examination of the reducers by all ranks together: `torchrun ... -m reduction_server.doctor`."""
