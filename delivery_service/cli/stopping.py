"""Waits for the signal that ends a command."""

from __future__ import annotations

import asyncio
import signal


async def until_stopped() -> None:
    """Return when SIGTERM or SIGINT arrives."""
    stopped = asyncio.Event()
    loop = asyncio.get_running_loop()
    numbers = (signal.SIGTERM, signal.SIGINT)
    for number in numbers:
        loop.add_signal_handler(number, stopped.set)
    try:
        await stopped.wait()
    finally:
        for number in numbers:
            loop.remove_signal_handler(number)
