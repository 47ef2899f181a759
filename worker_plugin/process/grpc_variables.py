"""Environment variables that gRPC reads once, when `grpc` is imported. Values set by the user take precedence."""

import os

# gRPC's own fork handlers cannot work alongside threads that use it, and then leave the child, a DataLoader worker, to
# crash (about every eighth fork with grpcio 1.85). Our children never touch gRPC; see `process.fork`.
os.environ.setdefault("GRPC_ENABLE_FORK_SUPPORT", "0")
# We report lost connections; gRPC would print its own lines into the training log.
os.environ.setdefault("GRPC_VERBOSITY", "ERROR")
