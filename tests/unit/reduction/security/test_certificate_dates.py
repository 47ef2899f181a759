"""The validity period of certificates, read from their bytes."""

import ssl
from datetime import UTC, datetime, timedelta

import pytest
import trustme
from cryptography import x509
from reduction.errors import ConfigError
from reduction.security.certificate_dates import Validity, date, validities


def issued(*not_after):
    """Return a PEM file with a certificate for each time."""
    authority = trustme.CA()
    made = [
        authority.issue_cert("h", not_after=when, not_before=datetime(1960, 1, 1, tzinfo=UTC))
        for when in not_after
    ]
    return b"words before it\n" + b"".join(one.cert_chain_pems[0].bytes() for one in made)


@pytest.mark.parametrize("year", [1990, 2027, 2049, 2050, 2999])
def test_both_time_formats_are_read(year):
    when = datetime(year, 2, 3, 4, 5, 6, tzinfo=UTC)
    begin = datetime(1960, 1, 1, tzinfo=UTC).timestamp()
    assert validities(issued(when), "f") == [Validity(begin, when.timestamp())]


def test_all_certificates_are_read_in_order():
    now = datetime.now(UTC).replace(microsecond=0)
    ends = [now + timedelta(days=days) for days in (3, 2, 4)]
    assert [one.end for one in validities(issued(*ends), "f")] == [when.timestamp() for when in ends]


def test_out_of_date_errors_name_the_date():
    assert date(0.0) == "1970-01-01 00:00:00 UTC"
    one = Validity(86_400.0, 2 * 86_400.0)
    assert [one.trouble(at) for at in (86_399.0, 86_400.0, 2 * 86_400.0, 2 * 86_400.1)] == [
        "is not valid before 1970-01-02 00:00:00 UTC",
        "",
        "",
        "expired on 1970-01-03 00:00:00 UTC",
    ]


def test_dates_match_the_cryptography_library():
    pem = trustme.CA().cert_pem.bytes()
    theirs = x509.load_pem_x509_certificate(pem)
    dates = theirs.not_valid_before_utc, theirs.not_valid_after_utc
    assert validities(pem, "f") == [Validity(*(when.timestamp() for when in dates))]


def test_a_version_1_certificate_without_a_version_field_is_read():
    def item(tag, *contents):
        return bytes([tag, len(b"".join(contents))]) + b"".join(contents)

    validity = item(0x30, item(0x17, b"260101000000Z"), item(0x17, b"270101000000Z"))
    der = item(0x30, item(0x30, item(2, b"\1"), item(0x30), item(0x30), validity))
    pem = ssl.DER_cert_to_PEM_cert(der).encode()
    assert [one.end for one in validities(pem, "f")] == [datetime(2027, 1, 1, tzinfo=UTC).timestamp()]


@pytest.mark.parametrize("pem", [b"", b"no certificate", b"\xff", b"-----BEGIN CERTIFICATE-----"])
def test_a_file_without_a_certificate(pem):
    with pytest.raises(ConfigError, match=r"^f: "):
        validities(pem, "f")


def test_truncated_certificates_raise_only_config_errors():
    der = ssl.PEM_cert_to_DER_cert(trustme.CA().cert_pem.bytes().decode())
    for length in range(1, len(der)):
        with pytest.raises(ConfigError):
            validities(ssl.DER_cert_to_PEM_cert(der[:length]).encode(), "f")
