"""FastAPI behind a Redis gate; live webhooks and the missed ones pass the same gate.

Run: ``uvicorn examples.kv_gate_fastapi:app``. Settings: ``WEBHOOK_SECRET``, ``REDIS_URL``, and for
the replay ``HOOKS_URL``, ``HOOKS_KEY`` and ``HOOKS_ENDPOINT``.
"""

import os

import httpx
import redis.asyncio
from fastapi import FastAPI

from receiver import Gate, Message, MissedEvents, Verifier
from receiver.contrib.asgi import webhook
from receiver.feed import FeedItem
from receiver.redis import RedisStore

client = redis.asyncio.Redis.from_url(os.environ.get("REDIS_URL", "redis://127.0.0.1:6379"))
gate = Gate(RedisStore(client), lease=30, max_failures=20)
verifier = Verifier.standard(os.environ["WEBHOOK_SECRET"], endpoint="orders")
app = FastAPI()


async def ship(body: bytes) -> None:
    """The effect."""
    await client.rpush("shipped", body)


@webhook(verifier, gate)
async def orders(message: Message) -> dict[str, str]:
    """A live delivery."""
    await ship(message.body)
    return {"order": "shipped"}


app.add_route("/hooks/orders", orders, methods=["POST"])


@app.post("/replay")
async def replay() -> dict[str, int]:
    """Pull what did not arrive: after an outage, or every few minutes."""

    async def missed(item: FeedItem) -> None:
        await ship(item.body)

    headers = {"authorization": f"Bearer {os.environ['HOOKS_KEY']}"}
    async with httpx.AsyncClient(base_url=os.environ["HOOKS_URL"], headers=headers) as http:
        # The scope of live keys: a delivery that arrived both ways has one effect.
        feed = MissedEvents(http, os.environ["HOOKS_ENDPOINT"], scope=verifier.scope)
        drained = await feed.drain(gate, missed)
    return {"handled": drained.handled, "duplicates": drained.duplicates, "failed": drained.failed}
