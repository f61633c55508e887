"""The tree of errors."""

from __future__ import annotations

import pytest

from llamasrv.errors import ContextTooLong, InvalidRequest, QueueFull


def test_an_error_can_be_reported_with_another_field_and_stays_as_it_was():
    """Errors that several requests held were edited on their way: one client read of another's field."""
    first = InvalidRequest("Invalid 'prompt'.", param="prompt", code="x", status=499)
    second = first.but(param="messages", message="Invalid 'messages'.")
    assert (first.param, first.message) == ("prompt", "Invalid 'prompt'.")
    assert (second.param, second.message, second.code, second.status) == ("messages", "Invalid 'messages'.", "x", 499)


@pytest.mark.parametrize("error", [ContextTooLong(num_prompt=3, context=2), QueueFull("Full.", wait=3)])
def test_every_kind_of_error_can(error):
    with pytest.raises(type(error)) as caught:
        raise error
    other = caught.value.but(param="messages")
    assert type(other) is type(error) and other.__traceback__ is None
    assert vars(other) == vars(error) | {"param": "messages"}
