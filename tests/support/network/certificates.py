"""Certificates made for a test: PEM files in its folder."""

import datetime
from pathlib import Path

import trustme
from reduction.security.tls import TlsFiles


class Authority:
    """A certification authority and the files of the certificates that it has issued."""

    def __init__(self, directory: Path, name: str = "ca") -> None:
        self._directory = directory
        self._name = name
        self._ca = trustme.CA()
        self.ca = str(directory / f"{name}.pem")
        self._ca.cert_pem.write_to_path(self.ca)

    def files(
        self, *identities: str, is_expired: bool = False, days: tuple[float, float] | None = None
    ) -> TlsFiles:
        """Return the files of a new certificate for these names or addresses.

        Args:
            identities: the names or addresses.
            is_expired: whether it was valid for one day last month.
            days: start and end of its validity, in days from now.
        """
        if is_expired:
            days = -30, -29
        now = datetime.datetime.now(datetime.UTC)
        times = [now + datetime.timedelta(days=one) for one in days or ()]
        dates = dict(zip(("not_before", "not_after"), times, strict=False))
        made = self._ca.issue_cert(*identities or ("worker.example",), **dates)
        suffix = "" if days is None else f"-{days[0]}-{days[1]}"
        stem = f"{self._name}-{'-'.join(identities) or 'worker'}{suffix}"
        cert, key = self._directory / f"{stem}.pem", self._directory / f"{stem}.key"
        cert.write_bytes(b"".join(blob.bytes() for blob in made.cert_chain_pems))
        key.touch(0o600)
        key.write_bytes(made.private_key_pem.bytes())
        return TlsFiles(str(cert), str(key), self.ca)
