"""All ranks look at the reducers at once: `torchrun ... -m reduction_server.doctor`."""
