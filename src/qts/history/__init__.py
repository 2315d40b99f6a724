"""Past market data: download from a venue, catalogue of Parquet files, import of other files."""

from qts._exports import lazy_exports

__getattr__, __dir__, __all__ = lazy_exports(__name__, __file__)
