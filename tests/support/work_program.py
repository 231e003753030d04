"""Worker processes as the command line runs them, for tests that kill some.

``python -m tests.support.work_program KIND COUNT SETTINGS``: the settings are JSON; a count of 0
runs one worker without a parent.
"""

from __future__ import annotations

import json
import signal
import sys
from datetime import timedelta
from functools import partial
from typing import Any

from delivery_service.worker.processes import MARGIN, run_processes


def work(options: dict[str, Any], index: int) -> None:
    """A worker, until SIGTERM."""
    # The parent, and children that never work, don't need all this.
    import asyncio

    import uvloop

    from delivery_service.bootstrap import build, configure_logging
    from delivery_service.settings import Settings

    async def run() -> None:
        service = build(settings)
        worker = service.worker()
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, worker.stop)
        async with service.housekeeping(), service.metrics_listener(index):
            await worker.run()
        await service.close()

    settings = Settings(**options)
    configure_logging(settings)
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(run())


def crash(_options: dict[str, Any], _index: int) -> None:
    """A child that cannot live."""
    sys.exit(3)


def ignore(_options: dict[str, Any], index: int) -> None:
    """A child that does not stop."""
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    print(f"deaf {index}", flush=True)
    while True:
        signal.pause()


def main() -> None:
    import structlog

    structlog.configure(
        processors=[structlog.processors.add_log_level, structlog.processors.JSONRenderer()],
        logger_factory=structlog.WriteLoggerFactory(sys.stderr),
    )
    kind, count, options = sys.argv[1], int(sys.argv[2]), json.loads(sys.argv[3])
    target = partial({"work": work, "crash": crash, "ignore": ignore}[kind], options)
    if not count:
        target(0)
        return
    # No grace at all where a child must be seen to be killed.
    grace = -MARGIN if kind == "ignore" else timedelta(seconds=20)
    sys.exit(run_processes(count, target, grace))


if __name__ == "__main__":
    main()
