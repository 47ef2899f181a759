"""All ranks examine the reducers together: `torchrun ... -m reduction_server.doctor`."""
