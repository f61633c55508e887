"""GET /v1/usage: usage and its cost by day, key and model. A key sees its own; one with the scope `admin` sees all."""

from __future__ import annotations

import time
from datetime import date

import orjson
from flask import Blueprint, Response, request

from llamasrv.errors import InvalidRequest
from llamasrv.store import DAY, DailyUsage, day_of
from llamasrv.web.service import Service
from llamasrv.web.views import current, json_answer

DAYS = 30  # days shown by default


def blueprint(service: Service) -> Blueprint:
    routes = Blueprint("usage", __name__)

    @routes.get("/v1/usage")
    def usage() -> Response:
        now = time.time()
        first, last = _day("since", now - DAYS * DAY), _day("until", now)
        owner = current().owner
        wanted = request.args.get("key")
        if wanted != owner and not service.access.allows(owner, "admin"):
            if wanted is not None:
                service.access.require(owner, "admin", "see what other keys have used")
            wanted = owner
        data = [
            {
                "date": used.day,
                "key": used.owner,
                "model": used.model,
                "requests": used.requests,
                "prompt_tokens": used.prompt,
                "cached_tokens": used.cached,
                "completion_tokens": used.generated,
                "seconds": round(used.seconds, 3),
                "cost": cost_of(used),
            }
            for used in service.usage.between(first, last)
            if wanted is None or used.owner == wanted
        ]
        return json_answer(orjson.dumps({"object": "list", "currency": service.options.currency, "data": data}))

    def cost_of(used: DailyUsage) -> float | None:
        """The cost at today's prices; None for a model without prices."""
        model = service.registry.named(used.model)
        prices = None if model is None else model.settings.prices
        return None if prices is None else round(prices.cost(used.prompt, used.cached, used.generated), 6)

    return routes


def _day(name: str, otherwise: float) -> str:
    given = request.args.get(name)
    if not given:
        return day_of(otherwise)
    try:
        return date.fromisoformat(given).isoformat()
    except ValueError:
        raise InvalidRequest(f"Invalid '{name}': expected a day as YYYY-MM-DD.", param=name) from None
