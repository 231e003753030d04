"""Metrics as Prometheus reads them."""

from __future__ import annotations

from prometheus_client.parser import text_string_to_metric_families

from delivery_service.metrics import Metrics

Sample = tuple[str, frozenset[tuple[str, str]]]


class Scraped:
    """One scrape: ``value(name, label="…")`` without the prefix; None when there is no such one."""

    def __init__(self, text: str) -> None:
        self.families = list(text_string_to_metric_families(text))
        self._values = {
            (sample.name, frozenset(sample.labels.items())): sample.value
            for family in self.families
            for sample in family.samples
        }

    def value(self, name: str, **labels: str) -> float | None:
        return self._values.get((f"surehook_{name}", frozenset(labels.items())))

    @property
    def label_names(self) -> set[str]:
        return {
            name
            for sample, labels in self._values
            if sample.startswith("surehook_")
            for name, _ in labels
        }


def scrape(metrics: Metrics) -> Scraped:
    return Scraped(metrics.render()[0].decode())
