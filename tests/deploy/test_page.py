"""docs/deploying.md: everything it shows is in a file of `deploy/`, which other tests run or check."""

from __future__ import annotations

import re

from support.artefacts import DEPLOY, ROOT

PAGE = ROOT / "docs/deploying.md"


def lines_of(text: str) -> set[str]:
    """Return the lines without indentation and comment marks."""
    return {line.strip().removeprefix("#").strip() for line in text.splitlines()}


def test_every_line_that_is_shown_is_in_a_file() -> None:
    texts = [path.read_text() for path in DEPLOY.rglob("*") if path.is_file()]
    known = set().union(*map(lines_of, texts))
    blocks = re.findall(r"^```\w+\n(.*?)^```$", PAGE.read_text(), re.MULTILINE | re.DOTALL)
    assert len(blocks) > 10
    assert set().union(*map(lines_of, blocks)) <= known


def test_every_folder_is_mentioned_on_the_page() -> None:
    page = PAGE.read_text()
    for folder in ("docker", "compose", "systemd", "kubernetes", "slurm", "vertex", "sagemaker"):
        assert f"`{folder}/" in page
