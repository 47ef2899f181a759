"""Generated protobuf classes of package reduction.v1; proto/generate.sh makes them."""
