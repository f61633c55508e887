"""PostgreSQL, shared by several servers."""

from __future__ import annotations

import re
from typing import Any

from llamasrv.errors import ConfigError
from llamasrv.store import StoreOptions, postgres_quotas, postgres_shelf
from llamasrv.store.quotas import LEASE
from llamasrv.store.sql import TABLES, SqlDialect, SqlStore

try:
    import psycopg
except ImportError:
    raise ConfigError("store.url: PostgreSQL needs the package psycopg: pip install 'llamasrv[postgres]'") from None

# Servers that start at the same moment must not create the tables concurrently.
_LOCK = "SELECT pg_advisory_xact_lock(726982734);"
# Defaults, overridden by the URL: seconds to connect, milliseconds and seconds until a dead host is given up.
_SETTINGS = {"connect_timeout": 5, "tcp_user_timeout": 10_000, "keepalives_idle": 30, "keepalives_interval": 5}
_STATEMENT_TIMEOUT = "10s"


class PostgresDialect(SqlDialect):
    name = "PostgreSQL"
    table = "llamasrv_responses"
    blocks = False  # sockets yield to other greenlets
    connections = 8

    def __init__(self, url: str) -> None:
        self._url = url
        self.errors = (psycopg.Error,)

    def statement(self, text: str) -> str:
        return re.sub(r":(\w+)", r"%(\1)s", text)

    def connect(self) -> Any:
        options = f"-c statement_timeout={_STATEMENT_TIMEOUT}"
        settings: dict[str, Any] = {**_SETTINGS, **psycopg.conninfo.conninfo_to_dict(self._url)}
        settings["options"] = f"{settings.get('options', '')} {options}".strip()
        return psycopg.connect(**settings, autocommit=True)

    def make_tables(self, db: Any) -> None:
        db.execute(
            _LOCK + TABLES.format(table=self.table, blob="BYTEA") + postgres_shelf.TABLES + postgres_quotas.TABLES
        )

    def works(self, db: Any) -> bool:
        try:
            db.execute("SELECT 1")
            return True
        except psycopg.Error:
            return False

    def close(self, db: Any) -> None:
        db.close()


class PostgresStore(SqlStore):
    def __init__(self, url: str, options: StoreOptions) -> None:
        super().__init__(PostgresDialect(url), options)

    def shelf(self, name: str) -> postgres_shelf.PostgresShelf:
        return postgres_shelf.PostgresShelf(self.connection, name)

    def quotas(self, lease: float = LEASE) -> postgres_quotas.PostgresQuotas:
        return postgres_quotas.PostgresQuotas(self.connection, lease)
