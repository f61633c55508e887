"""Models that a loader takes care of."""

from __future__ import annotations

import pytest
from models.farm import Farm


@pytest.fixture
def farm():
    """Makes farms; their engines end with the test."""
    made = []

    def make(**options):
        made.append(Farm(**options))
        return made[-1]

    yield make
    for one in made:
        one.close()
