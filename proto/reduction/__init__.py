"""What reducers and workers share: the protocol, the layout, the errors. Imports neither side."""

__version__ = "0.1.0"
