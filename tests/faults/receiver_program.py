"""A receiver that is slow to answer: ``python -m tests.faults.receiver_program PORT LOG``.

It writes down each request before it answers, then the answer byte by byte, so that a kill comes
in the middle of some.
"""

from __future__ import annotations

import asyncio
import json
import sys

ANSWER = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"


async def serve(port: int, log: str) -> None:
    slots = asyncio.Semaphore(3)

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while head := await _head(reader):
            await reader.readexactly(int(head["content-length"]))
            async with slots:
                with open(log, "a") as file:  # noqa: ASYNC230, PTH123 - it may die at any moment
                    file.write(json.dumps(head["webhook-id"]) + "\n")
                for index in range(len(ANSWER)):
                    writer.write(ANSWER[index : index + 1])
                    await writer.drain()
                    await asyncio.sleep(0.002)
        writer.close()

    server = await asyncio.start_server(answer, "127.0.0.1", port)
    print("listening", flush=True)
    await server.serve_forever()


async def _head(reader: asyncio.StreamReader) -> dict[str, str] | None:
    if not await reader.readline():
        return None
    head: dict[str, str] = {}
    while line := (await reader.readline()).decode().strip():
        name, _, value = line.partition(":")
        head[name.lower()] = value.strip()
    return head


if __name__ == "__main__":
    asyncio.run(serve(int(sys.argv[1]), sys.argv[2]))
