"""Workers killed with SIGKILL in the middle, and how many effects there are in the end."""

from __future__ import annotations

import pytest

from tests.receiver.stores.crashing import POINTS, counted_effects, main
from tests.receiver.stores.kinds import SYNC_SQL
from tests.support.processes import Processes

PROGRAM = "tests.receiver.stores.crashing"


@pytest.mark.parametrize("point", POINTS)
@pytest.mark.parametrize("kind", SYNC_SQL)
def test_in_the_callers_transaction_there_is_exactly_one_effect(
    kind: str, store_url: str, point: str, processes: Processes
) -> None:
    with counted_effects(kind, store_url) as effects:
        _kill_at(processes, kind, store_url, "joined", point)
        main(kind, store_url, "joined", "never")
        assert effects() == 1
        main(kind, store_url, "joined", "never")
        assert effects() == 1


@pytest.mark.parametrize(("point", "number"), [("claimed", 1), ("effect", 2)])
@pytest.mark.parametrize("kind", ["redis", "setnx", *SYNC_SQL])
def test_with_a_claim_apart_there_is_at_least_one_effect(
    kind: str, store_url: str, point: str, number: int, processes: Processes
) -> None:
    """Once if it died before the effect; twice if after it: nobody can know that it happened."""
    with counted_effects(kind, store_url) as effects:
        _kill_at(processes, kind, store_url, "own", point)
        main(kind, store_url, "own", "never")
        assert effects() == number
        main(kind, store_url, "own", "never")
        assert effects() == number


def _kill_at(processes: Processes, kind: str, url: str, way: str, point: str) -> None:
    victim = processes.python(PROGRAM, kind, url, way, point)
    victim.wait_for(f"^reached {point}$")
    victim.kill_alone()
