"""The readable text for gRPC's reason why it could not connect."""

import pytest
from reduction.transports.grpc_reasons import plain, shorter

DIAL = "failed to connect to all addresses; last error: "


@pytest.mark.parametrize(
    ("details", "text"),
    [
        (
            f"{DIAL}INTERNAL: ipv4:127.0.0.1:9102: Failed parsing HTTP/2 (Expected SETTINGS frame ...)",
            "it is not a reducer",
        ),
        ("errors resolving no-such-host: [field:A error:UNAVAILABLE", "the host name does not resolve"),
    ],
)
def test_obscure_details_get_a_plain_reason(details, text):
    assert plain(details).endswith(text)


def test_the_reason_is_kept_and_its_prefix_dropped():
    assert plain(f"{DIAL}UNKNOWN: ipv4:127.0.0.1:1: Connection refused") is None
    assert shorter(f"{DIAL}UNKNOWN: ipv4:127.0.0.1:1: Connection refused") == ("Connection refused", True)
    chain = f"{DIAL}UNKNOWN: ipv4:127.0.0.1:1: Failed to connect to remote host: Connection refused"
    assert shorter(chain) == ("Connection refused", True)
    assert shorter("Deadline Exceeded") == ("Deadline Exceeded", False)
