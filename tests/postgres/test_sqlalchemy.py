"""SQLAlchemy over psycopg and asyncpg: connecting, Core and ORM, transactions, errors."""

from datetime import UTC, datetime
from decimal import Decimal
from typing import Any

import pytest
from sqlalchemy import BigInteger, Column, DateTime, MetaData, Numeric, Table, Text, create_engine, func, insert, select
from sqlalchemy.exc import IntegrityError, OperationalError
from sqlalchemy.ext.asyncio import create_async_engine
from sqlalchemy.orm import DeclarativeBase, Mapped, Session, mapped_column

from support.server import ServerProcess

METADATA = MetaData()
THINGS = Table(
    "things", METADATA, Column("id", BigInteger, primary_key=True, autoincrement=False), Column("name", Text),
    Column("price", Numeric(10, 2)), Column("at", DateTime(timezone=True)),
)  # fmt: skip
AT = datetime(2024, 2, 29, 1, 2, 3, tzinfo=UTC)
ROWS: list[dict[str, Any]] = [
    {"id": 1, "name": "a", "price": Decimal("1.50"), "at": AT},
    {"id": 2, "name": None, "price": None, "at": None},
]


class Base(DeclarativeBase):
    """The base of mapped classes."""


class Thing(Base):
    """A row of `things`."""

    __tablename__ = "things"
    id: Mapped[int] = mapped_column(BigInteger, primary_key=True, autoincrement=False)
    name: Mapped[str | None] = mapped_column(Text)


def test_core_and_orm(server: ServerProcess, namespace: str) -> None:
    engine = create_engine(
        f"postgresql+psycopg://ada@127.0.0.1:{server.pg_port}/shop",
        connect_args={"options": f"-c search_path={namespace}"},
    )
    METADATA.create_all(engine, checkfirst=False)
    with engine.begin() as connection:
        connection.execute(insert(THINGS), ROWS)
        assert connection.execute(select(THINGS).order_by(THINGS.c.id)).mappings().all() == ROWS
    with Session(engine) as session:
        thing = session.get(Thing, 1)
        assert thing is not None
        thing.name = "changed"
        session.add(Thing(id=3, name="new"))
        session.commit()
        assert session.scalars(select(Thing.name).where(Thing.id.in_([1, 3])).order_by(Thing.id)).all() == [
            "changed", "new",
        ]  # fmt: skip
        session.add(Thing(id=3, name="again"))
        with pytest.raises(IntegrityError):
            session.commit()
        session.rollback()
        assert session.scalar(select(func.count()).select_from(Thing)) == 3
    with Session(engine) as first, Session(engine) as second:
        for number, session in enumerate((first, second)):
            thing = session.get(Thing, 2)
            assert thing is not None
            thing.name = f"session {number}"
            session.flush()
        first.commit()
        with pytest.raises(OperationalError, match="run the transaction again"):
            second.commit()
    engine.dispose()


async def test_asyncpg(server: ServerProcess, namespace: str) -> None:
    engine = create_async_engine(
        f"postgresql+asyncpg://ada@127.0.0.1:{server.pg_port}/shop",
        connect_args={"server_settings": {"search_path": namespace}},
    )
    async with engine.begin() as connection:
        await connection.run_sync(METADATA.create_all, checkfirst=False)
        await connection.execute(insert(THINGS), ROWS)
    async with engine.connect() as connection:
        assert (await connection.execute(select(THINGS).order_by(THINGS.c.id))).mappings().all() == ROWS
    await engine.dispose()
