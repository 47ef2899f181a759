"""What reducers and workers share: the protocol, the layout, the errors. Imports neither side."""

import sys

__version__ = "0.1.0"

if sys.byteorder != "little":
    raise ImportError(
        f"reduction-server does not run on {sys.byteorder}-endian machines: payloads are little-endian, and are "
        f"added and sent from where they are"
    )
