"""A Triton backend that serves language models. Importing this package costs nothing: heavy modules load on demand."""

__version__ = "0.1.0"
