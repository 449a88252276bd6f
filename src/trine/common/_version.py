"""trine's version, in one place: imported without the rest of trine."""

__version__ = "0.21.0"
