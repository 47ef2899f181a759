"""The TCP plane: fixed headers, and payloads straight from and into the memory where they belong."""

from reduction.transports.tcp.connection import MESSAGES_PER_WAKE, WAKE_BYTES_MAX, Connection, Handler
from reduction.transports.tcp.messages import (
    CONTROL,
    HAS_CRC,
    HEADER_BYTES,
    PREAMBLE,
    PUSH,
    RESULT,
    Header,
    check_payload,
    control_header,
    control_payload,
    pack_header,
    parse_header,
    push_header,
    result_header,
)
from reduction.transports.tcp.sockets import (
    KEEPALIVE_S,
    TCP_DELACK_MAX_US,
    TCP_RTO_MIN_US,
    prepare,
    receive_exactly,
)

__all__ = [
    "CONTROL",
    "HAS_CRC",
    "HEADER_BYTES",
    "KEEPALIVE_S",
    "MESSAGES_PER_WAKE",
    "PREAMBLE",
    "PUSH",
    "RESULT",
    "TCP_DELACK_MAX_US",
    "TCP_RTO_MIN_US",
    "WAKE_BYTES_MAX",
    "Connection",
    "Handler",
    "Header",
    "check_payload",
    "control_header",
    "control_payload",
    "pack_header",
    "parse_header",
    "prepare",
    "push_header",
    "receive_exactly",
    "result_header",
]
