"""Settings for tests, by the names of their options."""

from llamasrv.config import Settings
from llamasrv.config.settings import with_values


def settings_with(**values):
    return with_values(Settings(), values)
