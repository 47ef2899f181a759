"""Tensors on a GPU: their copies to host memory and back, and the block codecs that run there."""
