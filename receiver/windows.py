"""How long a receiver has to remember: longer than the sender can still repeat a delivery.

A delivery can come again until the end of the sender's horizon (its last automatic retry) and, if
it is replayed by hand or through a feed at the end of the replay window, for another horizon after
that. And whoever captured it can send it again while its timestamp is within the tolerance, which
is twice that long if it came from a clock that is ahead.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import timedelta
from typing import Final

from receiver.errors import ConfigurationError
from wire.contract import Contract
from wire.schedule import PRESETS

__all__ = ["DEFAULT_MEMORY", "WINDOWS", "Window", "check_memory", "window_of"]

DEFAULT_MEMORY: Final = timedelta(days=7)
MARGIN: Final = timedelta(days=1)
"""On top of the shortest possible memory, in the figure that is recommended."""
_ZERO: Final = timedelta(0)


@dataclass(frozen=True, slots=True)
class Window:
    """How long one sender may repeat a delivery.

    ``horizon``: from the first attempt to the last automatic retry. ``replay``: how long after
    the first attempt it may still be sent again on request. ``reference``: where that is said.
    """

    source: str
    horizon: timedelta
    replay: timedelta = _ZERO
    reference: str = ""
    postponement: timedelta = _ZERO
    tolerance: timedelta = _ZERO

    @classmethod
    def of_contract(cls, contract: Contract, source: str = "surehook") -> Window:
        """The window that a Surehook service publishes."""
        return cls(
            source,
            contract.schedule.horizon,
            contract.replay_window,
            "/.well-known/webhooks",
            contract.postponement,
            contract.tolerance,
        )

    def required(self, tolerance: timedelta = _ZERO) -> timedelta:
        """The time after which nothing comes again. The memory has to be longer than that."""
        repeats = self.horizon + self.replay + self.postponement
        return max(repeats, repeats + 2 * self.tolerance, 2 * tolerance)

    def recommended(self, tolerance: timedelta = _ZERO) -> timedelta:
        """The memory to use: whole days, a margin above `required`, and 7 days at least."""
        days = -(-(self.required(tolerance) + MARGIN) // timedelta(days=1))
        return max(DEFAULT_MEMORY, timedelta(days=days))


def _window(source: str, reference: str, horizon: timedelta, replay: timedelta = _ZERO) -> Window:
    return Window(source, horizon, replay, reference)


_META: Final = "https://developers.facebook.com/docs"

WINDOWS: Final[Mapping[str, Window]] = {
    window.source: window
    for window in (
        # The schedule that the specification recommends; a replay window is each sender's own.
        _window(
            "standard",
            "https://github.com/standard-webhooks/standard-webhooks/blob/main/spec/standard-webhooks.md",
            PRESETS["standard-webhooks"].horizon,
        ),
        # Retries for 3 days; events can be listed and sent again for 30 days.
        _window(
            "stripe",
            "https://docs.stripe.com/webhooks/process-undelivered-events",
            timedelta(days=3),
            timedelta(days=30),
        ),
        # No retries; on request for 3 days (7 on Enterprise Server, see README of that release).
        _window(
            "github",
            "https://docs.github.com/en/webhooks/testing-and-troubleshooting-webhooks/redelivering-webhooks",
            _ZERO,
            timedelta(days=3),
        ),
        # 8 retries within 4 hours.
        _window(
            "shopify",
            "https://shopify.dev/docs/apps/build/webhooks/subscribe/https",
            timedelta(hours=4),
        ),
        # 3 retries within about 6 minutes; with "delayed events" on, hourly for 24 hours.
        _window("slack", "https://docs.slack.dev/apis/events-api", timedelta(hours=24)),
        # The longest of Meta's products, WhatsApp.
        _window("meta", f"{_META}/whatsapp/cloud-api/guides/set-up-webhooks", timedelta(days=7)),
        _window(
            "whatsapp", f"{_META}/whatsapp/cloud-api/guides/set-up-webhooks", timedelta(days=7)
        ),
        _window("instagram", f"{_META}/graph-api/webhooks/getting-started", timedelta(hours=36)),
        _window("messenger", f"{_META}/graph-api/webhooks/getting-started", timedelta(hours=36)),
        # Retries, if asked for in the URL, within 15 seconds in all.
        _window(
            "twilio",
            "https://www.twilio.com/docs/usage/webhooks/webhooks-connection-overrides",
            timedelta(seconds=15),
        ),
        # A queue for each endpoint, tried for up to 30 days.
        _window(
            "adyen",
            "https://docs.adyen.com/development-resources/webhooks/troubleshoot",
            timedelta(days=30),
        ),
        # Retries for 1 hour; missed feeds for 2 days.
        _window(
            "mercado_libre",
            "https://developers.mercadolibre.com.ar/es_ar/productos-recibe-notificaciones",
            timedelta(hours=1),
            timedelta(days=2),
        ),
    )
}
"""The windows of the providers that the kit verifies, by source, with where each is documented."""


def check_memory(
    ttl: timedelta | float = DEFAULT_MEMORY,
    sender: str | Window | Contract = "standard",
    *,
    tolerance: timedelta = _ZERO,
) -> timedelta:
    """Check that a memory of `ttl` (seconds or timedelta) outlives what `sender` may repeat.

    `sender` is a source of `WINDOWS`, a `Window`, or the contract of a Surehook service; an
    unknown source has no window, so that only `tolerance`, of the timestamps, counts. Returns
    the ttl.

    Raises `ConfigurationError`, which says which number to use.
    """
    memory = ttl if isinstance(ttl, timedelta) else timedelta(seconds=ttl)
    window = window_of(sender)
    required = window.required(tolerance)
    if memory <= required:
        use = window.recommended(tolerance)
        raise ConfigurationError(
            f"ttl of {memory} is too short for {window.source}, which may repeat a delivery for "
            f"{required}: use ttl={use.total_seconds():.0f} seconds ({use.days} days)"
        )
    return memory


def window_of(sender: str | Window | Contract) -> Window:
    """The window of a source, of a contract, or itself."""
    match sender:
        case Window():
            return sender
        case Contract():
            return Window.of_contract(sender)
        case source:
            return WINDOWS.get(source) or Window(source, _ZERO)
