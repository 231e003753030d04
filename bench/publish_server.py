"""``surehook api`` with one more route: authentication and one INSERT + COMMIT.

In the environment, ``BENCH_PROFILE`` names a file for a profile of the process's CPU time.
"""

from __future__ import annotations

import cProfile
import os
import time
from typing import Any

from fastapi import FastAPI, Request, Response
from sqlalchemy import Connection, insert

from bench.rig import TENANT
from delivery_service.api.context import Here
from delivery_service.api.routing import router
from delivery_service.bootstrap import Service
from delivery_service.cli.processes import Parts, serve
from delivery_service.settings import Settings
from sender import tables
from wire.ids import EVENT, id_time, new_id

YARDSTICK_PATH = "/v1/bench/insert"

routes = router("bench")
make_api = Service.api


@routes.post(YARDSTICK_PATH.removeprefix("/v1"), status_code=202)
async def insert_one(context: Here, request: Request) -> Response:
    """Store the body as an event's row."""
    await context.write(_insert, await request.body())
    return Response(b"{}", 202, media_type="application/json")


def _insert(connection: Connection, body: bytes) -> None:
    event_id = new_id(EVENT)
    row = {
        "id": event_id,
        "tenant_id": TENANT,
        "type": "invoice.paid",
        "body": body,
        "content_type": "application/json",
        "created_at": id_time(event_id),
    }
    connection.execute(insert(tables.events), row)


def with_yardstick(service: Service, on_publish: Any = None) -> FastAPI:
    """The API with the route."""
    app = make_api(service, on_publish)
    app.include_router(routes)
    return app


def main() -> None:
    """Serve on one core."""
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
    Service.api = with_yardstick  # type: ignore[method-assign]
    arguments = (Settings(), Parts(api=True))
    profile = os.environ.get("BENCH_PROFILE")
    if profile is None:
        serve(*arguments)
        return
    profiler = cProfile.Profile(time.process_time)
    profiler.runcall(serve, *arguments)
    profiler.dump_stats(profile)


if __name__ == "__main__":
    main()
