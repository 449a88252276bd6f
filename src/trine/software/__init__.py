"""Software profiles: the work that a training framework adds to the operators of a model."""

from __future__ import annotations

from typing import TYPE_CHECKING

from trine.common._lazy import lazy

if TYPE_CHECKING:
    from trine.software.profile import MemoryStyle as MemoryStyle
    from trine.software.profile import Software as Software
    from trine.software.profile import ZeroStyle as ZeroStyle
    from trine.software.profile import known_software as known_software
    from trine.software.profile import load_software as load_software

__getattr__ = lazy(
    __name__,
    dict.fromkeys(
        ("MemoryStyle", "Software", "ZeroStyle", "known_software", "load_software"), "trine.software.profile"
    ),
)
