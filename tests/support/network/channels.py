"""Options of the gRPC channels that tests make by themselves."""

#: As all channels of ours: a proxy of the environment's is not for loopback.
NO_PROXY = [("grpc.enable_http_proxy", 0)]
