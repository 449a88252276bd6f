"""Folders of the user."""

from __future__ import annotations

import os
from pathlib import Path


def user_cache() -> Path | None:
    """Return the user's cache folder: ``XDG_CACHE_HOME`` or ``~/.cache``; None without a home folder."""
    for folder in (os.environ.get("XDG_CACHE_HOME", ""), os.path.expanduser("~/.cache")):
        if os.path.isabs(folder):  # the XDG specification ignores relative paths
            return Path(folder)
    return None
