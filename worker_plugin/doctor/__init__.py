"""All ranks look at the reducers at once: `torchrun ... -m worker_plugin.doctor`."""
