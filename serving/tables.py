"""The gateway's own state in SQL. Rows are written in the writer's thread, and by the listener what the bus says (`engines/splits`)."""

from sqlalchemy import (
    BigInteger,
    Boolean,
    Column,
    Float,
    Index,
    Integer,
    LargeBinary,
    MetaData,
    String,
    Table,
    Text,
)

METADATA = MetaData()

EPISODES = Table(
    "episodes",
    METADATA,
    Column("episode_id", String, primary_key=True),
    Column("key_owner", String, nullable=False),
    Column("user", String),
    Column("arm", String, nullable=False),
    Column("version", String, nullable=False),
    Column("propensity", Float, nullable=False),
    Column("generation", Integer, nullable=False),
    Column("canary_id", String),
    Column("flags", String, nullable=False, default=""),
    Column("created_at", BigInteger, nullable=False),
    Column("last_at", BigInteger, nullable=False),
    Column("ended_at", BigInteger),
    Column("withdrawn_at", BigInteger),
    Column("next_index", Integer, nullable=False),
    Column("newest", String),  # response id of the newest answer
)

ALIASES = Table(
    "aliases",
    METADATA,
    Column("key_owner", String, primary_key=True),
    Column("alias", String, primary_key=True),
    Column("episode_id", String, nullable=False),
)

INTERACTIONS = Table(
    "interactions",
    METADATA,
    Column("response_id", String, primary_key=True),
    Column("episode_id", String, nullable=False),
    Column("key_owner", String, nullable=False),
    Column("user", String),
    Column("index", Integer, nullable=False),
    Column("parent", String),
    Column("arm", String, nullable=False),
    Column("version", String, nullable=False),
    Column("propensity", Float, nullable=False),
    Column("generation", Integer, nullable=False),
    Column("canary_id", String),
    Column("flags", String, nullable=False, default=""),
    Column("status", String, nullable=False),  # `open` until it is recorded
    Column("started_at", BigInteger, nullable=False),
    Column("ended_at", BigInteger),
    Column("user_text", Text, nullable=False, default=""),
    Column("delivered", Text),
    Column("call_ids", Text, nullable=False, default=""),
    Column("thread", String),  # hash of the conversation up to and with this answer; None: not to be extended
    Column("ids", LargeBinary),  # the conversation in token ids, 4 bytes each
    Column("starts", Text),
    Index("interactions_thread", "thread"),
    Index("interactions_episode", "episode_id", "index"),
)

RATINGS = Table(
    "ratings",
    METADATA,
    Column("key_owner", String, primary_key=True),
    Column("id", String, primary_key=True),
    Column("revision", Integer, nullable=False),
    Column("natural_key", String, nullable=False),
    Column("episode_id", String, nullable=False),
    Column("response_id", String),
    Column("tool_call_id", String),
    Column("name", String, nullable=False),
    Column(
        "content", Text, nullable=False
    ),  # value, score, comment, correction, comparison, source, metadata as canonical JSON
    Column("rater", String, nullable=False),
    Column("status", String, nullable=False),
    Column("given_at", BigInteger, nullable=False),
    Column("created_at", BigInteger, nullable=False),
    Column("updated_at", BigInteger, nullable=False),
    Column("deleted", Boolean, nullable=False, default=False),
    Index("ratings_natural", "key_owner", "natural_key", unique=True),
    Index("ratings_episode", "episode_id"),
)

IDEMPOTENCY = Table(
    "idempotency",
    METADATA,
    Column("key_owner", String, primary_key=True),
    Column("key", String, primary_key=True),
    Column("body_hash", String, nullable=False),
    Column("status", Integer, nullable=False),
    Column("reply", Text, nullable=False),
    Column("at", BigInteger, nullable=False),
    Index("idempotency_at", "at"),
)

SPLITS = Table(
    "splits",
    METADATA,
    Column("agent", String, primary_key=True),
    Column("generation", Integer, nullable=False),
    Column("value", LargeBinary, nullable=False),
)

CREDITS = Table(
    "credits",
    METADATA,
    Column("episode_id", String, primary_key=True),
    Column("update_id", String, primary_key=True),
    Column("value", LargeBinary, nullable=False),
)
