"""Options: their definitions, the sources of their values, and the documents generated from them. Knows no model and
no HTTP.
"""

from llamasrv.config.settings import OPTIONS, TABLE_KEYS, ModelTable, Settings
from llamasrv.config.sources import CONFIG_VARIABLE, as_environment, current, load, load_again, use

__all__ = [
    "CONFIG_VARIABLE",
    "OPTIONS",
    "TABLE_KEYS",
    "ModelTable",
    "Settings",
    "as_environment",
    "current",
    "load",
    "load_again",
    "use",
]
