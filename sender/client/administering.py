"""Operations on endpoints, tenants, keys and the service, named as in its OpenAPI document."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Unpack

from sender.client.binding import listing, operation
from sender.client.given import (
    EndpointChange,
    EndpointFilter,
    FeedPlace,
    KeyFilter,
    NewEndpoint,
    NewKey,
    Paging,
    Rotation,
    StatsRange,
    TenantSettings,
    TestEvent,
)
from sender.client.reading import read_contract, read_feed, read_published
from sender.client.request import (
    Request,
    delete,
    get,
    listed,
    segment,
    send,
)
from sender.client.results import (
    ApiKey,
    CreatedApiKey,
    CreatedEndpoint,
    CreatedPortalToken,
    Endpoint,
    Page,
    Ready,
    RotatedSecret,
    SecretList,
    Tenant,
    Up,
)
from sender.client.traffic import Acknowledged, EndpointStats, FeedPage
from sender.publish import Published
from wire.contract import Contract


class EndpointOperations:
    """Endpoints and their secrets."""

    @operation
    def create_endpoint(
        self, *, tenant: str, url: str, **settings: Unpack[NewEndpoint]
    ) -> Request[CreatedEndpoint]:
        """Register a URL of a tenant, who need not exist before. Its secret is shown this once."""
        members = {"tenant": tenant, "url": url, **settings}
        return send("POST", "/v1/endpoints", CreatedEndpoint, members)

    @listing
    def list_endpoints(self, **where: Unpack[EndpointFilter]) -> Request[Page[Endpoint]]:
        """List endpoints, newest first."""
        return listed("/v1/endpoints", Endpoint, where)

    @operation
    def read_endpoint(self, endpoint_id: str) -> Request[Endpoint]:
        """Show an endpoint."""
        return get(_endpoint(endpoint_id), Endpoint)

    @operation
    def change_endpoint(
        self, endpoint_id: str, **changes: Unpack[EndpointChange]
    ) -> Request[Endpoint]:
        """Change the settings that are given; None resets one."""
        return send("PATCH", _endpoint(endpoint_id), Endpoint, changes, repeatable=True)

    @operation
    def delete_endpoint(self, endpoint_id: str) -> Request[None]:
        """Delete an endpoint and its secrets. Its pending deliveries are cancelled."""
        return delete(_endpoint(endpoint_id))

    @operation
    def enable_endpoint(self, endpoint_id: str) -> Request[Endpoint]:
        """Enable an endpoint, and close its circuit."""
        return send("POST", _endpoint(endpoint_id) + "/enable", Endpoint, repeatable=True)

    @operation
    def disable_endpoint(self, endpoint_id: str) -> Request[Endpoint]:
        """Disable an endpoint. Its pending deliveries become ``skipped``."""
        return send("POST", _endpoint(endpoint_id) + "/disable", Endpoint, repeatable=True)

    @operation
    def verify_endpoint(self, endpoint_id: str) -> Request[Endpoint]:
        """Let the receiver prove that it wants what is sent to this URL."""
        return send("POST", _endpoint(endpoint_id) + "/verify", Endpoint, repeatable=True)

    @operation
    def read_endpoint_stats(
        self, endpoint_id: str, **where: Unpack[StatsRange]
    ) -> Request[EndpointStats]:
        """Count an endpoint's attempts by outcome, for each hour or day."""
        return get(_endpoint(endpoint_id) + "/stats", EndpointStats, where)

    @operation
    def send_test(self, endpoint_id: str, **event: Unpack[TestEvent]) -> Request[Published]:
        """Send a test event to this endpoint alone, whatever types it is registered for."""
        return _sending(_endpoint(endpoint_id) + "/test", {"data": {}, **event})

    @operation
    def send_example(self, endpoint_id: str, *, type: str) -> Request[Published]:  # noqa: A002
        """Send the catalogue's example of an event type to this endpoint alone."""
        return _sending(_endpoint(endpoint_id) + "/send-example", {"type": type})

    @operation
    def read_feed(self, endpoint_id: str, **where: Unpack[FeedPlace]) -> Request[FeedPage]:
        """Read a part of what an endpoint was, or was to be, sent, oldest first."""
        path = _endpoint(endpoint_id) + "/feed"
        return Request("GET", path, read_feed, get(path, FeedPage, where).query, repeatable=True)

    @operation
    def acknowledge(self, endpoint_id: str, deliveries: Sequence[str]) -> Request[Acknowledged]:
        """Count deliveries as delivered by pull: nothing more is sent of them."""
        path = _endpoint(endpoint_id) + "/feed/acknowledge"
        return send("POST", path, Acknowledged, {"deliveries": list(deliveries)}, repeatable=True)

    @operation
    def list_secrets(self, endpoint_id: str) -> Request[SecretList]:
        """List the secrets that sign now, without showing them."""
        return get(_endpoint(endpoint_id) + "/secrets", SecretList)

    @operation
    def rotate_secret(
        self, endpoint_id: str, **rotation: Unpack[Rotation]
    ) -> Request[RotatedSecret]:
        """Put a new secret in force, shown this once; older ones sign on for the overlap."""
        return send("POST", _endpoint(endpoint_id) + "/secrets/rotate", RotatedSecret, rotation)


class TenantOperations:
    """Tenants."""

    @operation
    def create_tenant(self, tenant_id: str, **settings: Unpack[TenantSettings]) -> Request[Tenant]:
        """Create a tenant. Publishing does not need one; it only holds settings."""
        return send("POST", "/v1/tenants", Tenant, {"id": tenant_id, **settings})

    @listing
    def list_tenants(self, **where: Unpack[Paging]) -> Request[Page[Tenant]]:
        """List tenants in the order of their ids."""
        return listed("/v1/tenants", Tenant, where)

    @operation
    def read_tenant(self, tenant_id: str) -> Request[Tenant]:
        """Show a tenant."""
        return get(_tenant(tenant_id), Tenant)

    @operation
    def put_tenant(self, tenant_id: str, **settings: Unpack[TenantSettings]) -> Request[Tenant]:
        """Create a tenant, or replace its settings."""
        return send("PUT", _tenant(tenant_id), Tenant, settings, repeatable=True)

    @operation
    def change_tenant(self, tenant_id: str, **changes: Unpack[TenantSettings]) -> Request[Tenant]:
        """Change the settings that are given; None resets one."""
        return send("PATCH", _tenant(tenant_id), Tenant, changes, repeatable=True)

    @operation
    def delete_tenant(self, tenant_id: str) -> Request[None]:
        """Delete a tenant with everything in it."""
        return delete(_tenant(tenant_id))


class KeyOperations:
    """API keys."""

    @operation
    def create_key(
        self, *, name: str, scope: str, **options: Unpack[NewKey]
    ) -> Request[CreatedApiKey]:
        """Make an API key, which is shown this once."""
        return send("POST", "/v1/keys", CreatedApiKey, {"name": name, "scope": scope, **options})

    @listing
    def list_keys(self, **where: Unpack[KeyFilter]) -> Request[Page[ApiKey]]:
        """List keys, newest first, also those no longer in force."""
        return listed("/v1/keys", ApiKey, where)

    @operation
    def read_key(self, key_id: str) -> Request[ApiKey]:
        """Show a key, but not the key itself."""
        return get(_key_path(key_id), ApiKey)

    @operation
    def revoke_key(self, key_id: str) -> Request[None]:
        """Revoke a key for good; every process has stopped accepting it after 2 seconds."""
        return delete(_key_path(key_id))

    @operation
    def create_portal_token(
        self, *, tenant: str, expires_in_seconds: int = 3600
    ) -> Request[CreatedPortalToken]:
        """Make a token with which a person of one tenant uses the portal, for a day at most."""
        members = {"tenant": tenant, "expires_in_seconds": expires_in_seconds}
        return send("POST", "/v1/portal-tokens", CreatedPortalToken, members)


class ServiceOperations:
    """The service itself."""

    @operation
    def up(self) -> Request[Up]:
        """Tell that the service answers; says nothing about the database or workers."""
        return get("/healthz", Up)

    @operation
    def ready(self) -> Request[Ready]:
        """Tell whether deliveries flow. Raises `ApiError` of status 503, at once, if not."""
        return Request(
            "GET", "/readyz", get("/readyz", Ready).read, repeatable=True, never_again=True
        )

    @operation
    def read_contract(self) -> Request[Contract]:
        """Show the platform's schedule, replay window, profiles and tolerance."""
        return Request("GET", "/.well-known/webhooks", read_contract, repeatable=True)


def _sending(path: str, members: Mapping[str, Any]) -> Request[Published]:
    request = send("POST", path, Published, members)
    return replace(request, read=read_published)


def _endpoint(endpoint_id: str) -> str:
    return f"/v1/endpoints/{segment('endpoint_id', endpoint_id)}"


def _tenant(tenant_id: str) -> str:
    return f"/v1/tenants/{segment('tenant_id', tenant_id)}"


def _key_path(key_id: str) -> str:
    return f"/v1/keys/{segment('key_id', key_id)}"
