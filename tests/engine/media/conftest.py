from engine_driver import drive  # noqa: F401
