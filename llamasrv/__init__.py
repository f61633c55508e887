"""llamasrv: GGUF models behind the APIs that applications already speak."""

__version__ = "1.0.0"
