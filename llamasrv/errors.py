"""Every error a caller can meet, in one tree.

    LlamasrvError                 status, code and the field it concerns
    ├── InvalidRequest            400  the request itself is wrong
    │   ├── MissingParameter      400  missing_required_parameter
    │   ├── ContextTooLong        400  context_length_exceeded, of an input InputTooLong
    │   ├── Unsupported           400  a field or value that this server cannot honour
    │   ├── BodyTimeout           408
    │   ├── TooSlow               408  the answer is not read
    │   ├── BodyTooLarge          413
    │   └── UnsupportedMedia      415
    ├── Unauthorized              401
    ├── Forbidden                 403
    ├── NotFound                  404  no such route
    │   ├── ModelNotFound         404  model_not_found
    │   └── MethodNotAllowed      405
    ├── QueueFull                 429  with retry_after
    ├── RateLimited               429  this key has had its share; with retry_after
    ├── Unavailable               503  loading, draining or restarting; with retry_after
    │   └── ModelUnavailable      503  this model could not be loaded; with retry_after
    ├── DeadlineExceeded          504  the request's own time limit passed
    ├── EngineFailure             500  a decode failed, or the loop itself
    └── DiskFull                  507
    ConfigError                   ends the start with one line, exit 78

Knows no protocol and no HTTP library: `web/errors.py` turns these into replies.
"""

from __future__ import annotations

from collections.abc import Mapping
from math import ceil
from random import randint
from typing import Any, TypeVar

_Error = TypeVar("_Error", bound="LlamasrvError")

LONGEST_RETRY = 30.0  # upper bound in seconds for `retry_after`


class LlamasrvError(Exception):
    """Base of all errors with a status.

    `param` names the field as the client wrote it, or is None; errors raised below the protocols use a neutral name,
    which the endpoint maps to its own (`protocols/common/names.py`). `details` are further machine-readable facts, for
    protocols that have a place for them. `about` is a subject with its number or name, for protocols whose clients
    expect certain words: ("image",), ("pdf pages", 20).
    """

    status: int = 500
    code: str | None = None
    retry_after: float | None = None
    details: Mapping[str, Any] | None = None
    about: tuple[Any, ...] = ()

    def __init__(
        self,
        message: str,
        *,
        param: str | None = None,
        code: str | None = None,
        status: int | None = None,
        about: tuple[Any, ...] = (),
    ) -> None:
        super().__init__(message)
        self.message = message
        self.param = param
        if code is not None:
            self.code = code
        if status is not None:
            self.status = status
        if about:
            self.about = about

    def but(self: _Error, **changes: Any) -> _Error:
        """A new error like this one, with these attributes changed and without a traceback.

        Never edit an error that is shared, and never raise one instance in several callers: its traceback keeps the
        frames of all of them alive.
        """
        other = self.__class__.__new__(self.__class__, *self.args)
        other.__dict__.update(self.__dict__, **changes)
        return other


class InvalidRequest(LlamasrvError):
    """The request is wrong. Raised before anything is allocated."""

    status = 400


class MissingParameter(InvalidRequest):
    """The request lacks a required parameter."""

    code = "missing_required_parameter"

    def __init__(self, param: str) -> None:
        super().__init__(f"Missing required parameter: '{param}'.", param=param)


class ContextTooLong(InvalidRequest):
    """The prompt does not fit the context. Raised before a lane is taken."""

    code = "context_length_exceeded"
    _words = "However, your messages resulted in {} tokens{}. Please reduce the length of the messages."

    def __init__(self, *, num_prompt: int, context: int, param: str | None = None) -> None:
        no_room = ", which leaves none for an answer" if num_prompt == context else ""
        super().__init__(
            f"This model's maximum context length is {context} tokens. {self._words.format(num_prompt, no_room)}",
            param=param,
        )
        self.num_prompt = num_prompt
        self.context = context


class InputTooLong(ContextTooLong):
    """Like ContextTooLong, for a text to embed or score."""

    _words = "However, your input is too large: it has {} tokens. Please reduce the length of the input."


class Unsupported(InvalidRequest):
    """A known field that this server cannot honour; ignoring it would change the result."""

    code = "unsupported_parameter"


class InvalidMedia(InvalidRequest):
    """An image, sound or document that cannot be decoded within the limits."""

    code = "invalid_media"


class BodyTimeout(InvalidRequest):
    """The body did not arrive."""

    status = 408
    code = "request_timeout"


class TooSlow(InvalidRequest):
    """The client does not read the answer."""

    status = 408
    code = "client_too_slow"


class BodyTooLarge(InvalidRequest):
    status = 413
    code = "request_too_large"


class UnsupportedMedia(InvalidRequest):
    """The body is not JSON, or is compressed."""

    status = 415
    code = "unsupported_media_type"


class Unauthorized(LlamasrvError):
    status = 401
    code = "invalid_api_key"


class Forbidden(LlamasrvError):
    status = 403
    code = "permission_denied"


class NotFound(LlamasrvError):
    status = 404
    code = "unknown_url"


class ModelNotFound(NotFound):
    code = "model_not_found"


class MethodNotAllowed(NotFound):
    status = 405
    code = "method_not_allowed"
    allowed: tuple[str, ...] = ()  # the route's methods


class QueueFull(LlamasrvError):
    """The bounded queue is full. The client should retry after `retry_after` seconds, which are random within the
    queue's `wait`, so that refused clients do not return all at once."""

    status = 429
    code = "rate_limit_exceeded"

    def __init__(self, message: str, *, wait: float = 0.0) -> None:
        super().__init__(message)
        self.retry_after = float(randint(1, ceil(min(max(wait, 2.0), LONGEST_RETRY))))


class RateLimited(LlamasrvError):
    """The key has used up its quota for now; other keys are served."""

    status = 429
    code = "rate_limit_exceeded"

    def __init__(self, message: str, *, retry_after: float) -> None:
        super().__init__(message)
        self.retry_after = retry_after


class HubUnreachable(LlamasrvError):
    """The Hugging Face Hub does not answer, or refuses."""

    status = 502
    code = "hub_error"


class BudgetSpent(LlamasrvError):
    """The key has used its tokens of this month. Without a time to wait: it would be days."""

    status = 429
    code = "insufficient_quota"


class Unavailable(LlamasrvError):
    """Not now: the model is loading, the server is draining, or the engine is restarting."""

    status = 503
    code = "overloaded"
    retry_after = 2.0


class ModelUnavailable(Unavailable):
    """The model failed to load. The next request after `retry_after` seconds tries again."""

    code = "model_load_failed"

    def __init__(self, message: str, *, retry_after: float = 2.0) -> None:
        super().__init__(message, param="model")
        self.retry_after = retry_after


class DeadlineExceeded(LlamasrvError):
    status = 504
    code = "deadline_exceeded"


class EngineFailure(LlamasrvError):
    """A decode or the engine loop failed. The message hides the cause, which could contain content or addresses."""

    status = 500
    code = "engine_failure"


class DiskFull(LlamasrvError):
    status = 507
    code = "insufficient_storage"


class ConfigError(Exception):
    """A wrong option, file or model. The command line prints it as one line and exits 78 (EX_CONFIG)."""
