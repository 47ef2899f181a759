"""Tensors on a GPU: their copies to host memory and back, and block codecs that run there."""
