"""Code shared by reducers and workers: the protocol, the layout and the errors. It imports neither side."""

import sys

__version__ = "0.1.0"

if sys.byteorder != "little":
    raise ImportError(
        f"reduction-server does not run on {sys.byteorder}-endian machines: payloads are little-endian, and are "
        f"added and sent in place"
    )
