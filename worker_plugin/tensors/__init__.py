"""Conversion between torch's tensors and bytes on the wire: admission, encoding, staging, GPUs, memory."""
