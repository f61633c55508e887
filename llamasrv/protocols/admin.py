"""Bodies of /admin/keys: what a key may do, how much, and until when."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime, timezone
from typing import Any

from llamasrv.domain.key import SCOPES
from llamasrv.protocols.common.loader import SchemaEndpoint
from llamasrv.protocols.common.schema import Array, Count, Invalid, String, WireSchema

MOST = 10**12
NO_LIMIT = "; null: no limit"


class Scopes(Array):
    def _deserialize(self, value: Any, attr: str | None, data: Any, **kwargs: Any) -> list[str]:
        names = super()._deserialize(value, attr, data, **kwargs)
        if not names or any(name not in SCOPES for name in names):
            raise Invalid(f"expected one or more of {', '.join(SCOPES)}.")
        return [scope for scope in SCOPES if scope in names]


class Moment(String):
    """ISO 8601; without a zone it is in UTC."""

    def _deserialize(self, value: Any, attr: str | None, data: Any, **kwargs: Any) -> datetime:
        text = super()._deserialize(value, attr, data, **kwargs)
        try:
            moment = datetime.fromisoformat(text[:-1] + "+00:00" if text.endswith("Z") else text)
        except ValueError:
            raise Invalid("expected a date such as 2030-12-31, or one with a time.") from None
        return (moment if moment.tzinfo else moment.replace(tzinfo=timezone.utc)).astimezone(timezone.utc)


class ModelNames(Array):
    def _deserialize(self, value: Any, attr: str | None, data: Any, **kwargs: Any) -> list[str]:
        names = super()._deserialize(value, attr, data, **kwargs)
        if not names or not all(isinstance(name, str) and name for name in names):
            raise Invalid("expected one or more names of models.")
        return list(dict.fromkeys(names))


class KeyChangeSchema(WireSchema):
    scopes = Scopes(", ".join(SCOPES))
    models = ModelNames("names or aliases of the models that it may use; null: all of them")
    requests_per_minute = Count(1, MOST, "requests that begin in a minute" + NO_LIMIT)
    tokens_per_minute = Count(1, MOST, "tokens of prompts and answers" + NO_LIMIT)
    tokens_per_month = Count(1, MOST, "tokens of prompts and answers in a calendar month (UTC)" + NO_LIMIT)
    concurrency = Count(1, MOST, "requests at once" + NO_LIMIT)
    expires = Moment("a date or a time, from which on it gets 401; null: never")


class KeySchema(KeyChangeSchema):
    name = String("up to 64 letters, digits, `-`, `_` and `.`", required=True)


class RotationSchema(WireSchema):
    grace_seconds = Count(0, 366 * 86_400, "how long the old secret stays valid")


class NewKey(SchemaEndpoint):
    schema = KeySchema

    def parse(self, body: Mapping[str, Any]) -> tuple[str, dict[str, Any]]:
        values = dict(self._load(body))
        return values.pop("name"), values


class ChangedKey(SchemaEndpoint):
    schema = KeyChangeSchema

    def parse(self, body: Mapping[str, Any]) -> dict[str, Any]:
        """The fields to change; None for one that is to be removed."""
        cleared = {name: None for name in KeyChangeSchema().fields if name in body and body[name] is None}
        return {**self._load(body), **cleared}


class Rotation(SchemaEndpoint):
    schema = RotationSchema

    def parse(self, body: Mapping[str, Any]) -> int:
        seconds: int = self._load(body).get("grace_seconds", 0)
        return seconds
