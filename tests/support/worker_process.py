"""``python -m tests.support.worker_process``: one worker, by the settings of the environment.

It stops on SIGTERM, as the command line's does.
"""

from __future__ import annotations

import asyncio
import signal

from delivery_service.bootstrap import build, configure_logging
from delivery_service.cli.opening import load_settings


async def main() -> None:
    settings = load_settings()
    configure_logging(settings)
    service = build(settings)
    worker = service.worker()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, worker.stop)
    await worker.run()
    await service.close()


if __name__ == "__main__":
    asyncio.run(main())
