"""The service inside another application: mounted in an ASGI one, or a worker thread in any.

FastAPI and Starlette run it in their own event loop, from their lifespan::

    app = FastAPI()
    mount(app, "/webhooks", Settings())

Flask, Django and everything else run a worker in a thread with an event loop of its own::

    webhooks = WorkerThread(Settings())
    webhooks.start()          # in each process that serves, after it was forked

Nothing is connected or started before that, so an application may be imported, and forked,
freely. Neither listens on a port: `metrics` gives what a page of the application can show.
"""

from delivery_service.embedding.asgi import Embedded, mount
from delivery_service.embedding.thread import EmbeddingError, WorkerThread

__all__ = ["Embedded", "EmbeddingError", "WorkerThread", "mount"]
