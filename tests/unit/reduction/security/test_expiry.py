"""When certificates expire."""

import ssl
from datetime import UTC, datetime, timedelta

import pytest
import trustme
from cryptography import x509
from reduction.errors import ConfigError
from reduction.security.expiry import expires_at


def issued(*not_after):
    """Return a PEM file with a certificate for each time."""
    authority = trustme.CA()
    made = [
        authority.issue_cert("h", not_after=when, not_before=datetime(1960, 1, 1, tzinfo=UTC))
        for when in not_after
    ]
    return b"words before it\n" + b"".join(one.cert_chain_pems[0].bytes() for one in made)


@pytest.mark.parametrize("year", [1990, 2027, 2049, 2050, 2999])
def test_both_ways_to_write_a_time(year):
    when = datetime(year, 2, 3, 4, 5, 6, tzinfo=UTC)
    assert expires_at(issued(when), "f") == when.timestamp()


def test_the_first_of_several_counts():
    now = datetime.now(UTC).replace(microsecond=0)
    pem = issued(now + timedelta(days=3), now + timedelta(days=2), now + timedelta(days=4))
    assert expires_at(pem, "f") == (now + timedelta(days=2)).timestamp()


def test_the_same_as_the_library_says():
    pem = trustme.CA().cert_pem.bytes()
    assert expires_at(pem, "f") == x509.load_pem_x509_certificate(pem).not_valid_after_utc.timestamp()


def test_a_certificate_of_version_1_has_no_field_for_it():
    def item(tag, *contents):
        return bytes([tag, len(b"".join(contents))]) + b"".join(contents)

    validity = item(0x30, item(0x17, b"260101000000Z"), item(0x17, b"270101000000Z"))
    der = item(0x30, item(0x30, item(2, b"\1"), item(0x30), item(0x30), validity))
    pem = ssl.DER_cert_to_PEM_cert(der).encode()
    assert expires_at(pem, "f") == datetime(2027, 1, 1, tzinfo=UTC).timestamp()


@pytest.mark.parametrize("pem", [b"", b"no certificate", b"\xff", b"-----BEGIN CERTIFICATE-----"])
def test_a_file_without_a_certificate(pem):
    with pytest.raises(ConfigError, match=r"^f: no date of expiry can be read from its certificates: "):
        expires_at(pem, "f")


def test_no_end_of_a_certificate_is_an_error_of_another_kind():
    der = ssl.PEM_cert_to_DER_cert(trustme.CA().cert_pem.bytes().decode())
    for length in range(1, len(der)):
        with pytest.raises(ConfigError):
            expires_at(ssl.DER_cert_to_PEM_cert(der[:length]).encode(), "f")
