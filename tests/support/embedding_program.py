"""Applications with a worker thread, for tests of forks and of the interpreter's exit.

``python -m tests.support.embedding_program KIND SETTINGS``: the settings are JSON.
"""

from __future__ import annotations

import json
import os
import sys
import traceback
from collections.abc import Callable
from pathlib import Path

import pytest
from sqlalchemy import Engine

from delivery_service.embedding import EmbeddingError, WorkerThread
from delivery_service.settings import Settings
from sender import publish
from tests.support.tables import sync_engine
from tests.support.waiting import wait_until


def _publish(engine: Engine) -> None:
    with engine.begin() as connection:
        publish(connection, tenant="acme", type="invoice.paid", data={"pid": os.getpid()})


def leave(webhooks: WorkerThread, engine: Engine) -> None:
    """Ends by itself while an attempt is in flight: the receiver creates the file ``arrived``
    when all have arrived."""
    webhooks.start()
    _publish(engine)
    webhooks.poke()
    wait_until(Path("arrived").exists)
    print("leaving", flush=True)


def fork_before(webhooks: WorkerThread, engine: Engine) -> None:
    """As a pre-forking server does: made before the fork, started in both children."""
    _wait_for([_fork(lambda: leave(webhooks, engine)) for _ in range(2)])


def fork_after(webhooks: WorkerThread, engine: Engine) -> None:
    """Started before the fork: the child has no thread, is told so when it starts one (the locks
    that the parent's thread held are held there for ever), and does the parent's no harm."""
    webhooks.start()

    def child() -> None:
        assert not webhooks.running
        webhooks.poke()  # must not reach into the parent's loop
        assert webhooks.stop()
        with pytest.raises(EmbeddingError, match="post_fork"):
            webhooks.start()

    _wait_for([_fork(child)])
    assert webhooks.running
    leave(webhooks, engine)


def _fork(work: Callable[[], None]) -> int:
    pid = os.fork()
    if pid:
        return pid
    try:
        work()
    except BaseException:  # noqa: BLE001 - told by the exit code
        traceback.print_exc()
        os._exit(1)
    sys.exit(0)  # a real exit of the interpreter, as a forked server's


def _wait_for(pids: list[int]) -> None:
    for pid in pids:
        _, status = os.waitpid(pid, 0)
        assert os.waitstatus_to_exitcode(status) == 0


def main() -> None:
    kind, options = sys.argv[1], json.loads(sys.argv[2])
    kinds = {"leave": leave, "fork-before": fork_before, "fork-after": fork_after}
    kinds[kind](WorkerThread(Settings(**options)), sync_engine(options["database_url"]))


if __name__ == "__main__":
    main()
