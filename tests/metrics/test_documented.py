"""Every metric is in the documentation, and the documentation and the alerts name no other."""

from __future__ import annotations

import re
from pathlib import Path

from delivery_service.metrics import Metrics, QueueState, WorkerState
from tests.metrics.scraped import scrape

PAGES = Path(__file__).parents[2] / "docs" / "how-to"
NAMED = re.compile(r"\bsurehook_[a-z_]+")
PARTS = ("_bucket", "_sum", "_count", "_created")


def exported() -> set[str]:
    """The names of all metrics, as a query would name them; of histograms without their part."""
    metrics = Metrics()
    metrics.watch_worker(lambda: WorkerState(0, 0, 0, 0))
    metrics.queue_is(QueueState(0.0, 0, 0, {"enabled": 1}, {"closed": 1}, {"queued": 1}))
    metrics.attempt("delivered", 0.1, 0.1)
    metrics.ended["delivered"] += 1
    metrics.removed["events"] += 1
    return {
        family.name + ("_total" if family.type == "counter" else "")
        for family in scrape(metrics).families
        if family.name.startswith("surehook_")
    }


def test_the_page_names_each_metric_and_no_other() -> None:
    assert set(NAMED.findall((PAGES / "monitoring.md").read_text())) == exported()


def test_the_alerts_go_by_metrics_that_exist() -> None:
    rules = (PAGES / "prometheus-rules.yml").read_text()
    named = set(NAMED.findall(rules))
    assert {re.sub(f"({'|'.join(PARTS)})$", "", name) for name in named} <= exported()
    assert "surehook_oldest_due_age_seconds" in named


def test_h04_each_alert_is_explained() -> None:
    alerts = re.findall(r"- alert: (\w+)", (PAGES / "prometheus-rules.yml").read_text())
    page = (PAGES / "monitoring.md").read_text()
    assert re.findall(r"^\| `(Surehook\w+)`", page, re.MULTILINE) == alerts
