"""llamasrv: GGUF models behind the APIs that applications already speak."""

__version__ = "0.1.0"
