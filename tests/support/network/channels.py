"""Options of the gRPC channels that tests make by themselves."""

#: All our channels ignore a proxy that the environment names, because it does not lead to loopback.
NO_PROXY = [("grpc.enable_http_proxy", 0)]
