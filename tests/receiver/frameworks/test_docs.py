"""The examples of the README and of the how-to page run as printed, behind real servers."""

from __future__ import annotations

import base64
import json
import re
import time
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
from fastapi import FastAPI
from flask import Flask
from sqlalchemy import create_engine, text

from tests.receiver.frameworks.apps import configure_django, serve_asgi, serve_wsgi
from tests.receiver.samples import WHSEC, base64_hmac
from tests.receiver.test_feed import Service
from tests.receiver.test_windows import CONTRACT, service

ROOT = Path(__file__).parents[3]
PAGE = ROOT / "docs" / "how-to" / "receive-webhooks.md"


def blocks(text: str) -> list[str]:
    return re.findall(r"```python\n(.*?)```", text, re.DOTALL)


BLOCKS = blocks(PAGE.read_text(encoding="utf-8"))
_, _, _README = (ROOT / "README.md").read_text(encoding="utf-8").partition("## The receiver's side")
COMMON, ASGI, FLASK, DJANGO = blocks(_README.partition("\n## ")[0])


def example(containing: str) -> dict[str, Any]:
    (source,) = [block for block in BLOCKS if containing in block]
    # Named after a module that exists: Flask looks for the folder of the app's module.
    names: dict[str, Any] = {"__name__": __name__}
    exec(compile(source, str(PAGE), "exec"), names)
    return names


def post(url: str, path: str = "/hooks/billing") -> int:
    body, now = b'{"id":"evt_1","type":"invoice.paid","data":{}}', int(time.time())
    key = base64.b64decode(WHSEC.removeprefix("whsec_"))
    headers = {
        "webhook-id": "dlv_1",
        "webhook-timestamp": str(now),
        "webhook-signature": f"v1,{base64_hmac(key, b'dlv_1.%d.%b' % (now, body))}",
    }
    return httpx.post(url + path, content=body, headers=headers).status_code


@pytest.fixture(autouse=True)
def secret(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WEBHOOK_SECRET", WHSEC)


@pytest.mark.parametrize(
    "containing",
    ["fastapi import FastAPI", 'app = Flask(__name__)\n\n\n@app.post("/hooks/billing")'],
)
def test_the_fastapi_and_flask_examples(
    containing: str, capsys: pytest.CaptureFixture[str]
) -> None:
    app = example(containing)["app"]
    serve = contextmanager(serve_asgi if "FastAPI" in containing else serve_wsgi)
    with serve(app) as url:
        assert [post(url), post(url)] == [200, 200]
    assert capsys.readouterr().out.count("dlv_1 invoice.paid") == 1


def test_the_django_example(capsys: pytest.CaptureFixture[str]) -> None:
    configure_django()
    from django.core.wsgi import get_wsgi_application
    from django.urls import clear_url_caches

    from tests.receiver.frameworks import urls

    urls.urlpatterns[:] = example("urlpatterns")["urlpatterns"]
    clear_url_caches()
    with contextmanager(serve_wsgi)(get_wsgi_application()) as url:
        assert [post(url), post(url)] == [200, 200]
    assert capsys.readouterr().out.count("dlv_1 invoice.paid") == 1


def readme(block: str, **given: Any) -> dict[str, Any]:
    """Run what the README's four blocks have in common, and one of them, in an application."""
    names: dict[str, Any] = {"__name__": __name__, **given}
    exec(compile(COMMON + block, "README.md", "exec"), names)
    return names


@pytest.mark.parametrize("block", [ASGI, FLASK, DJANGO], ids=["asgi", "flask", "django"])
def test_the_readmes_snippets_are_short_and_have_one_effect(
    block: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert len([line for line in block.splitlines() if line.strip()]) <= 6
    if block is DJANGO:
        configure_django()
        from django.core.wsgi import get_wsgi_application
        from django.urls import clear_url_caches, path

        from tests.receiver.frameworks import urls

        urls.urlpatterns[:] = readme(block, path=path)["urlpatterns"]
        clear_url_caches()
        serve, app = contextmanager(serve_wsgi), get_wsgi_application()
    elif block is FLASK:
        serve, app = contextmanager(serve_wsgi), Flask(__name__)
        readme(block, app=app)
    else:
        serve, app = contextmanager(serve_asgi), FastAPI()
        readme(block, app=app)
    with serve(app) as url:
        assert [post(url, "/hooks"), post(url, "/hooks")] == [200, 200]
    assert capsys.readouterr().out.count("dlv_1 ") == 1


def test_the_example_of_missed_events(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    feed = Service([b'{"n":1}', b'{"n":2}'])
    try:
        monkeypatch.setenv("SUREHOOK_URL", feed.url)
        monkeypatch.setenv("HOOKS_KEY", "key")
        monkeypatch.setenv("HOOKS_ENDPOINT", "ep_1")
        drained = example("drained = feed.drain")["drained"]
    finally:
        feed.close()
    assert drained.handled == 2
    assert feed.missed == {}
    assert "dlv_001 a.b {'n': 2}" in capsys.readouterr().out


def test_the_contract_example(monkeypatch: pytest.MonkeyPatch) -> None:
    with service(200, json.dumps(CONTRACT.to_dict()).encode()) as url:
        monkeypatch.setenv("SUREHOOK_URL", url)
        ttl = example("fetch_contract(")["billing"].receiver.ttl
    assert ttl > CONTRACT.min_dedup_ttl.total_seconds()


def test_the_inbox_example(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DATABASE_URL", f"sqlite:///{tmp_path / 'inbox.db'}")
    names = example("inbox.create_table()")
    with contextmanager(serve_wsgi)(names["app"]) as server:
        assert [post(server, "/hooks/inbox"), post(server, "/hooks/inbox")] == [202, 202]
    assert names["inbox"].pending().run()[0] == 1
    names["inbox"].database.engine.dispose()


def test_the_ledger_example(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    url = f"sqlite:///{tmp_path / 'ledger.db'}"
    monkeypatch.setenv("DATABASE_URL", url)
    engine = create_engine(url)
    with engine.begin() as connection:
        connection.execute(text("CREATE TABLE ledger (id TEXT)"))
    names = example("INSERT INTO ledger")
    with contextmanager(serve_wsgi)(names["app"]) as server:
        assert [post(server, "/hooks/ledger"), post(server, "/hooks/ledger")] == [200, 200]
    with engine.connect() as connection:
        assert connection.execute(text("SELECT count(*) FROM ledger")).scalar() == 1
    engine.dispose()
    names["engine"].dispose()
