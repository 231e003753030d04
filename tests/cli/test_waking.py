"""What is published or redelivered on the command line is announced to the workers."""

from __future__ import annotations

import psycopg

from sender.waking import CHANNEL
from tests.cli.conftest import Operator, on_postgresql


@on_postgresql
def test_workers_are_told(operator: Operator) -> None:
    operator.endpoint()
    with psycopg.connect(operator.settings.database_url, autocommit=True) as listener:
        listener.execute(f"LISTEN {CHANNEL}")
        (delivery,) = operator.publish()["deliveries"]
        assert len(list(listener.notifies(timeout=20, stop_after=1))) == 1
        operator.run("deliveries", "redeliver", delivery)
        assert len(list(listener.notifies(timeout=20, stop_after=1))) == 1
