"""The demo's platform: a shop whose invoices live in the same database."""

from __future__ import annotations

from sqlalchemy import Engine, create_engine, func, select
from sqlalchemy.orm import DeclarativeBase, Mapped, Session, mapped_column

from delivery_service.store import keys
from sender.publish import Published, publish
from sender.sqlite import configure_sqlite

TENANT = "acme"
EVENT_TYPE = "invoice.paid"


class Base(DeclarativeBase):
    """The shop's own tables."""


class Invoice(Base):
    """A row of business."""

    __tablename__ = "invoices"

    id: Mapped[int] = mapped_column(primary_key=True)
    customer: Mapped[str]
    cents: Mapped[int]


class CardRefused(Exception):
    """Why the second sale is rolled back."""


class Shop:
    """Sells, and publishes each sale in the transaction that records it."""

    def __init__(self, database_url: str) -> None:
        self._engine: Engine = create_engine(database_url)
        configure_sqlite(self._engine)
        Base.metadata.create_all(self._engine)

    def close(self) -> None:
        """Close the database."""
        self._engine.dispose()

    def api_key(self) -> str:
        """Make an API key, as `surehook keys create` does."""
        with self._engine.begin() as connection:
            return keys.create(connection, name="demo", scope=keys.Scope.ADMIN).key

    def sell(self, customer: str, cents: int, *, refused: bool = False) -> Published:
        """Record an invoice and publish that it was paid: both, or neither.

        Raises `CardRefused`, after both were written and before the commit, if ``refused``.
        """
        with Session(self._engine) as session, session.begin():
            invoice = Invoice(customer=customer, cents=cents)
            session.add(invoice)
            session.flush()
            data = {"invoice": invoice.id, "customer": customer, "cents": cents}
            published = publish(session, tenant=TENANT, type=EVENT_TYPE, data=data)
            if refused:
                raise CardRefused("the card was refused")
        return published

    def customers(self) -> list[str]:
        """Who has an invoice."""
        with Session(self._engine) as session:
            return list(session.scalars(select(Invoice.customer).order_by(Invoice.id)))

    def count(self) -> int:
        """How many invoices there are."""
        with Session(self._engine) as session:
            return session.scalar(select(func.count()).select_from(Invoice)) or 0
