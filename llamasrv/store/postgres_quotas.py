"""Quotas in PostgreSQL: one row for each key, and one statement."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

from llamasrv.store.quotas import QuotaLimits, QuotaUse, QuotaVerdict

# `open`: a process to its number of running requests and the time until which that counts.
TABLES = """
CREATE TABLE IF NOT EXISTS llamasrv_quotas (
    name TEXT PRIMARY KEY,
    requests DOUBLE PRECISION,
    tokens DOUBLE PRECISION,
    seen DOUBLE PRECISION NOT NULL,
    open JSONB NOT NULL,
    refused TEXT NOT NULL
);
"""
_NEW = """
INSERT INTO llamasrv_quotas (name, seen, open, refused) VALUES (%(name)s, 0, '{}', '') ON CONFLICT DO NOTHING
"""


def _level(name: str) -> str:
    most = f"%(most_{name})s::float8"
    refilled = f"coalesce(q.{name}, {most}) + greatest(0, c.now - q.seen) * {most} / 60"
    # LEAST passes over NULL, and both are NULL where there is no limit
    return f"least({most}, {refilled}) - %({name})s::int AS {name}"


# All of it refers to the row as it is once it is locked.
_COUNT = f"""
UPDATE llamasrv_quotas q SET (requests, tokens, seen, open, refused) = (
    SELECT
        l.requests - n.started,
        l.tokens,
        c.now,
        o.others || CASE
            WHEN %(running)s::int + n.more = 0 THEN '{{}}'::jsonb
            ELSE jsonb_build_object(
                %(process)s::text, jsonb_build_array(%(running)s::int + n.more, c.now + %(lease)s::float8)
            )
        END,
        v.refused
    FROM (SELECT extract(epoch FROM clock_timestamp())::float8 AS now) c
    CROSS JOIN LATERAL (SELECT {_level("requests")}, {_level("tokens")}) l
    CROSS JOIN LATERAL (
        SELECT coalesce(jsonb_object_agg(key, value), '{{}}') AS others, coalesce(sum((value->>0)::int), 0) AS open
        FROM jsonb_each(q.open) WHERE key <> %(process)s::text AND (value->>1)::float8 > c.now
    ) o
    CROSS JOIN LATERAL (SELECT CASE
        WHEN NOT %(wants)s THEN ''
        WHEN o.open + %(running)s::int >= %(most_running)s::int THEN 'running'
        WHEN l.requests < 1 THEN 'requests'
        WHEN l.tokens <= 0 THEN 'tokens'
        ELSE ''
    END AS refused) v
    CROSS JOIN LATERAL (SELECT
        CASE WHEN %(wants)s AND v.refused = '' THEN 1 ELSE 0 END AS started,
        CASE WHEN %(wants)s AND v.refused = '' AND %(most_running)s::int IS NOT NULL THEN 1 ELSE 0 END AS more
    ) n
) WHERE name = %(name)s RETURNING refused, requests, tokens
"""


class PostgresQuotas:
    """`connection` lends a database connection for a block."""

    def __init__(self, connection: Callable[[], AbstractContextManager[Any]], lease: float) -> None:
        self._connection, self._lease = connection, lease

    def count(self, key: str, process: str, limits: QuotaLimits, use: QuotaUse) -> QuotaVerdict:
        named = {f"most_{name}": most for name, most in limits._asdict().items()}
        named |= {"name": key, "process": process, "lease": self._lease, **use._asdict()}
        with self._connection() as db:
            row = db.execute(_COUNT, named).fetchone()
            if row is None:
                db.execute(_NEW, named)
                row = db.execute(_COUNT, named).fetchone()
        return QuotaVerdict(row[0], row[1] or 0.0, row[2] or 0.0)
