"""Options of the gRPC channels that tests create themselves."""

#: All our channels ignore a proxy from the environment, because it does not lead to loopback.
NO_PROXY = [("grpc.enable_http_proxy", 0)]
