"""Quotas in Redis: one hash for each key, and one script.

llamasrv:quota:KEY    a hash: requests and tokens (what is left), seen (when), open:PROCESS ("COUNT UNTIL")
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any
from urllib.parse import quote

from llamasrv.store.quotas import QuotaLimits, QuotaUse, QuotaVerdict

# A bucket that is full again says no more than none: the hash expires then.
_COUNT = """
local key, process, running, wants = KEYS[1], 'open:' .. ARGV[1], tonumber(ARGV[2]), ARGV[5] == '1'
local most, lease = {requests = tonumber(ARGV[6]), tokens = tonumber(ARGV[7])}, tonumber(ARGV[9])
local time = redis.call('TIME')
local now = time[1] + time[2] / 1e6
local found, open = {}, running
local stored = redis.call('HGETALL', key)
for i = 1, #stored, 2 do
    local name, value = stored[i], stored[i + 1]
    if name:sub(1, 5) ~= 'open:' then
        found[name] = tonumber(value)
    elseif name ~= process then
        local count, til = value:match('^(%d+) (.+)$')
        if tonumber(til) > now then open = open + tonumber(count) else redis.call('HDEL', key, name) end
    end
end
local gone = math.max(0, now - (found.seen or now))
local left, age = {}, lease
for i, name in ipairs({'requests', 'tokens'}) do
    if most[name] then
        left[name] = math.min(most[name], (found[name] or most[name]) + gone * most[name] / 60) - tonumber(ARGV[2 + i])
    end
end
local refused = ''
if wants then
    if ARGV[8] ~= '' and open >= tonumber(ARGV[8]) then refused = 'running'
    elseif left.requests and left.requests < 1 then refused = 'requests'
    elseif left.tokens and left.tokens <= 0 then refused = 'tokens'
    else
        if ARGV[8] ~= '' then running = running + 1 end
        if left.requests then left.requests = left.requests - 1 end
    end
end
redis.call('HSET', key, 'seen', string.format('%.6f', now))
for name, level in pairs(left) do
    redis.call('HSET', key, name, string.format('%.6f', level))
    age = math.max(age, (most[name] - level) * 60 / most[name])
end
if running > 0 then redis.call('HSET', key, process, string.format('%d %.6f', running, now + lease))
else redis.call('HDEL', key, process) end
redis.call('EXPIRE', key, math.ceil(age) + 1)
return {refused, string.format('%.6f', left.requests or 0), string.format('%.6f', left.tokens or 0)}
"""


class RedisQuotas:
    def __init__(self, db: Any, redis_errors: Callable[[], AbstractContextManager[None]], lease: float) -> None:
        self._redis_errors, self._lease = redis_errors, lease
        self._count = db.register_script(_COUNT)

    def count(self, key: str, process: str, limits: QuotaLimits, use: QuotaUse) -> QuotaVerdict:
        bounds = ["" if most is None else most for most in limits]
        args = [process, use.running, use.requests, use.tokens, int(use.wants), *bounds, self._lease]
        with self._redis_errors():
            refused, requests, tokens = self._count(keys=[f"llamasrv:quota:{quote(key, safe='')}"], args=args)
        return QuotaVerdict(refused.decode(), float(requests), float(tokens))
