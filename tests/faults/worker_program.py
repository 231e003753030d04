"""``surehook`` with a fault in its process: ``python -m tests.faults.worker_program FAULT…``.

``--clock SECONDS`` has the process's wall clock wrong by that much. ``--poison MARKER`` kills the
process when a body with the marker is to be sent.
"""

from __future__ import annotations

import datetime as dt
import os
import sys
import time
from typing import Any


def shift_clock(seconds: float) -> None:
    """Have every way to ask for the wall clock answer wrongly. Call it before other imports."""
    real_time, real_time_ns = time.time, time.time_ns
    real_datetime = dt.datetime
    by = dt.timedelta(seconds=seconds)

    class Meta(type(real_datetime)):  # type: ignore[misc]
        def __instancecheck__(cls, instance: Any) -> bool:
            return isinstance(instance, real_datetime)

    class Shifted(real_datetime, metaclass=Meta):
        @classmethod
        def now(cls, tz: Any = None) -> Any:
            return real_datetime.now(tz) + by

        @classmethod
        def utcnow(cls) -> Any:
            return real_datetime.now(dt.UTC).replace(tzinfo=None) + by

    time.time = lambda: real_time() + seconds
    time.time_ns = lambda: real_time_ns() + int(seconds * 1_000_000_000)
    dt.datetime = Shifted  # type: ignore[misc]


def poison(marker: str) -> None:
    """Die, as of a fault in native code, when such a body is to be sent."""
    from delivery_service.net.transport import AiohttpTransport

    send = AiohttpTransport.send

    async def deadly(self: Any, request: Any, deadline: float) -> Any:
        if marker.encode() in request.body:
            os._exit(70)
        return await send(self, request, deadline)

    AiohttpTransport.send = deadly  # type: ignore[method-assign]


FAULTS = {"--clock": lambda value: shift_clock(float(value)), "--poison": poison}


def main() -> None:
    arguments = sys.argv[1:]
    while arguments[0] in FAULTS:
        FAULTS[arguments[0]](arguments[1])
        arguments = arguments[2:]
    sys.argv = ["surehook", *arguments]
    from delivery_service.cli import main as surehook

    surehook()


if __name__ == "__main__":
    main()
