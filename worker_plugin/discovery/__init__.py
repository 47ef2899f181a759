"""How a rank finds its job, the other ranks, the reducers and the nodes, before it opens a stream.

Most of this may block, so it runs on its own thread.
"""
