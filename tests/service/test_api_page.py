"""The page about the HTTP API names every operation with its scopes, as they are."""

from __future__ import annotations

import re

from tests.service.caller import Api
from tests.support.processes import ROOT


def _documented() -> dict[tuple[str, str], set[str]]:
    text = (ROOT / "docs" / "reference" / "http-api.md").read_text()
    table = text.partition("## Operations")[2].partition("## Publishing")[0]
    found = {}
    for line in table.splitlines():
        if not line.startswith("| `"):
            continue
        operations, scopes = line.strip("| ").split(" | ")
        for operation in operations.split(" · "):
            *methods, last = re.findall(r"[A-Z]+(?: /\S+)?", operation.replace("`", ""))
            method, path = last.split(" ")
            allowed = set() if scopes == "no key" else set(scopes.split(", "))
            found |= {(each, path): allowed for each in (*methods, method)}
    return found


async def test_the_page_about_the_api_is_up_to_date(sqlite_api: Api) -> None:
    document = sqlite_api.app.openapi()
    actual = {
        (method.upper(), path): set(
            next(iter(operation["security"][0].values())) if "security" in operation else ()
        )
        for path, item in document["paths"].items()
        for method, operation in item.items()
    }
    assert _documented() == actual
