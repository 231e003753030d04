"""Items of a JSON array keep their text."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from wire.errors import EnvelopeError
from wire.rawjson import raw_items

VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(st.characters(exclude_categories=["Cs"])),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(max_size=3), inner),
    max_leaves=10,
)  # fmt: skip


@given(st.lists(VALUES.map(json.dumps)), st.sampled_from(["", " ", "\n\t"]))
def test_items_are_the_text_between_the_commas(texts: list[str], space: str) -> None:
    content = "[" + space + f"{space},{space}".join(texts) + space + "]"
    assert [item.content.decode() for item in raw_items(content)] == texts


def test_spelling_is_kept() -> None:
    items = raw_items(b' [1.10, 1E2 , {"a":1,"a":2},"\\u0000,]" ,[]] ')
    assert [item.content for item in items] == [
        b"1.10", b"1E2", b'{"a":1,"a":2}', b'"\\u0000,]"', b"[]",
    ]  # fmt: skip


@pytest.mark.parametrize("content", [b"{}", b"1", b"", b"[1,]", b"[NaN]", b"[\xff]"])
def test_anything_else_is_refused(content: bytes) -> None:
    with pytest.raises(EnvelopeError):
        raw_items(content)
