"""A shop in Django: an order is stored once for each webhook of Shopify, whatever comes again.

A whole project in one file. Run: ``uvicorn examples.django_shop:application``; with
``django.core.wsgi`` in place of ``asgi``, any WSGI server does as well. Settings:
``SHOPIFY_SECRET``, ``DATABASE_URL``, and ``DJANGO_SECRET_KEY``.
"""

import os

from django.core.asgi import get_asgi_application
from django.urls import path
from sqlalchemy import BigInteger, Column, MetaData, String, Table, create_engine, insert
from sqlalchemy.orm import Session, sessionmaker

from receiver import Gate, Message, Verifier
from receiver.contrib.django import webhook
from receiver.sql import SqlStore

SECRET_KEY = os.environ["DJANGO_SECRET_KEY"]
ALLOWED_HOSTS = os.environ.get("DJANGO_HOSTS", "127.0.0.1,localhost").split(",")
ROOT_URLCONF = __name__
MIDDLEWARE = ["django.middleware.csrf.CsrfViewMiddleware"]

engine = create_engine(os.environ.get("DATABASE_URL", "sqlite:///shop.sqlite3"))
store = SqlStore(engine)
store.create_table().run()
orders = Table(
    "orders",
    MetaData(),
    Column("number", BigInteger, primary_key=True, autoincrement=False),
    Column("message", String(255), nullable=False),
)


@webhook(
    Verifier.shopify(os.environ["SHOPIFY_SECRET"], endpoint="shop", types=["orders/create"]),
    Gate(store, max_failures=20),
    transaction=sessionmaker(engine).begin,
)
def order(message: Message, session: Session) -> None:
    """Store an order; it commits together with the message's receipt."""
    session.execute(insert(orders).values(number=message.data["id"], message=message.id))


urlpatterns = [path("hooks/shopify", order)]
os.environ.setdefault("DJANGO_SETTINGS_MODULE", __name__)
application = get_asgi_application()
