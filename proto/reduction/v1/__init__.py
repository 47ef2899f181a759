"""Generated protobuf classes of protocol version 1; proto/generate.sh makes them."""
