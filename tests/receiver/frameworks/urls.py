"""Django's URLs; filled by the test that serves them."""

from __future__ import annotations

from typing import Any

urlpatterns: list[Any] = []
