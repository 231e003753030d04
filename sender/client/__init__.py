"""The client of the service's API: `Client` for blocking code, `AsyncClient` for asyncio."""

from sender.client.clients import AsyncClient, Client

__all__ = ["AsyncClient", "Client"]
