"""Environment variables that gRPC reads once, when `grpc` is imported. Whoever sets them himself wins."""

import os

# gRPC's own fork handlers cannot work beside threads that use it, and then leave the child, a
# DataLoader worker, to crash (about every eighth fork with grpcio 1.85). Our children never touch
# gRPC, see `process.fork`.
os.environ.setdefault("GRPC_ENABLE_FORK_SUPPORT", "0")
# Lost connections are ours to report; gRPC would print lines of its own into the training log.
os.environ.setdefault("GRPC_VERBOSITY", "ERROR")
