"""The public conformance suite on every store of the kit."""

from __future__ import annotations

import pytest

from receiver.testing import StoreConformance
from tests.receiver.stores.kinds import ALL


@pytest.mark.parametrize("kind", ALL)
class TestStores(StoreConformance):
    """All stores but the one on three commands do everything."""


@pytest.mark.parametrize("kind", ["setnx"])
class TestSetNxStore(StoreConformance):
    """What a REST key-value service allows."""

    takes_clock = False
    counts_attempts = False
    lists_dead_letters = False
    short_lease = 1.0
