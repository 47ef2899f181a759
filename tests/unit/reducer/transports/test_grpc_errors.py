"""The gRPC statuses of errors match the table in proto/README.md."""

import re
from pathlib import Path

from reducer.transports.grpc_server import STATUS

README = Path(__file__).parents[4] / "proto/README.md"


def test_the_table_matches_the_codes_sent():
    rows = re.findall(r"^\| (\d+) [A-Z_]+ \| \w+ \| ([A-Z_]+) \|", README.read_text(), re.MULTILINE)
    assert {int(code): name for code, name in rows} == {code: status.name for code, status in STATUS.items()}
