"""The controller's tables but those of the units: versions, canaries and the append-only log of what became of them."""

from sqlalchemy import BigInteger, Column, Engine, Integer, MetaData, String, Table, Text

from deploy.canary import units
from feedback import store

METADATA = MetaData()
_ROW_ID = BigInteger().with_variant(Integer, "sqlite")

VERSIONS = Table(
    "versions",
    METADATA,
    Column("version", String, primary_key=True),
    Column("digest", String),
    Column("uri", String),
    Column("parent", String),
    Column("source", String, nullable=False),
    Column("refused", String),
    Column("at", BigInteger, nullable=False),
)

CANARIES = Table(
    "canaries",
    METADATA,
    Column("seq", _ROW_ID, primary_key=True, autoincrement=True),
    Column("canary_id", String, unique=True, nullable=False),
    Column("version", String, nullable=False, index=True),
    Column("phase", String, nullable=False, index=True),
    Column("verdict", String),
    Column("reason", String, nullable=False),
    Column("actor", String, nullable=False),
    Column("state", Text),
    Column("first_generation", BigInteger),
    Column("created_at", BigInteger, nullable=False),
    Column("finished_at", BigInteger),
)

EVENTS = Table(
    "events",
    METADATA,
    Column("seq", _ROW_ID, primary_key=True, autoincrement=True),
    Column("canary_id", String, index=True),
    Column("before", String),
    Column("after", String),
    Column("reason", String, nullable=False),
    Column("actor", String, nullable=False),
    Column("evidence", Text, nullable=False),
    Column("at", BigInteger, nullable=False),
)

VERDICTS = Table(
    "verdicts",
    METADATA,
    Column("seq", _ROW_ID, primary_key=True, autoincrement=True),
    Column("version", String, nullable=False),
    Column("verdict", String, nullable=False),
    Column("reason", String, nullable=False),
    Column("at", BigInteger, nullable=False),
)

CHAMPIONS = Table(
    "champions",
    METADATA,
    Column("seq", _ROW_ID, primary_key=True, autoincrement=True),
    Column("version", String, nullable=False),
    Column("kind", String, nullable=False),
    Column("generation", BigInteger, nullable=False),
    Column("at", BigInteger, nullable=False),
)

SPLITS = Table(
    "splits",
    METADATA,
    Column("generation", BigInteger, primary_key=True, autoincrement=False),
    Column("body", Text, nullable=False),
    Column("at", BigInteger, nullable=False),
)

NOTES = Table(
    "notes", METADATA, Column("name", String, primary_key=True), Column("value", Text, nullable=False)
)

PEOPLE = Table(
    "anchor_people",
    METADATA,
    Column("reign", BigInteger, primary_key=True, autoincrement=False),
    Column("person", String, primary_key=True),
)


def create_tables(engine: Engine) -> None:
    """Make what is missing."""
    store.create_tables(engine, METADATA, units.METADATA)
