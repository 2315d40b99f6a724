"""The latest quotes, positions and limits, a fast memory beside the database."""

from qts.cache.config import CacheConfig

__all__ = ["CacheConfig"]
