"""tests/claims.md: its quotes are in the documents, its tests exist, and no row of docs/failures.md is missing."""

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
PAGE = ROOT / "tests/claims.md"


def plain(text: str) -> str:
    """Return a text without links, Markdown marks and line breaks."""
    text = re.sub(r"\[([^]]*)\]\([^)]*\)", r"\1", text)
    return " ".join(re.sub(r"[`*]", "", text).split())


def rows(text: str) -> list[list[str]]:
    """Return the cells of all tables except their headers."""
    lines = [line.strip("|").split(" | ") for line in text.splitlines() if line.startswith("|")]
    heads = {number - 1 for number, cells in enumerate(lines) if set("".join(cells)) <= set("|-")}
    return [
        [cell.strip() for cell in cells]
        for number, cells in enumerate(lines)
        if not heads & {number, number - 1}
    ]


#: The claims, by the document that makes them.
CLAIMS = {
    document: rows(section)
    for document, section in re.findall(r"^## (\S+)\n(.*?)(?=^## |\Z)", PAGE.read_text(), re.M | re.S)
}


def functions(path: Path) -> set[str]:
    return {
        node.name
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
    }


@pytest.mark.parametrize("document", CLAIMS)
def test_every_claim_is_quoted_and_has_tests_that_exist(document):
    text = plain((ROOT / document).read_text())
    assert [
        claim
        for claim, _ in CLAIMS[document]
        if any(part not in text for part in plain(claim).split(" ... "))
    ] == []
    named = [name for _, tests in CLAIMS[document] for name in tests.split(", ")]
    wrong = []
    for path, _, test in (name.strip("`").partition("::") for name in named):
        file = ROOT / "tests" / path
        if not (file.is_file() and test.startswith("test_") and test in functions(file)):
            wrong.append(f"{path}::{test}")
    assert wrong == []


def test_no_row_of_a_table_about_failures_is_left_out():
    claimed = {plain(claim) for claim, _ in CLAIMS["docs/failures.md"]}
    assert [
        cells[0] for cells in rows((ROOT / "docs/failures.md").read_text()) if plain(cells[0]) not in claimed
    ] == []
