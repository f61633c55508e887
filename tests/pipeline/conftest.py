from pipelines import engine, pipeline, run  # noqa: F401
