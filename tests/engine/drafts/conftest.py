from constraints import compiler  # noqa: F401
