"""Ctrl-C that arrives while a library calls back: it is swallowed there, and has to come again."""

from __future__ import annotations

import _thread
import sys
import threading
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from sys import UnraisableHookArgs

#: Until it comes again: the callback is over by then.
AGAIN_S = 0.05


def keep_interrupts() -> None:
    """Let Ctrl-C come again where it was swallowed, as in callbacks of the compiler (llvmlite, by ctypes)."""
    sys.unraisablehook = _swallowed


def _swallowed(what: UnraisableHookArgs) -> None:
    if not issubclass(what.exc_type, KeyboardInterrupt):
        sys.__unraisablehook__(what)
        return
    again = threading.Timer(AGAIN_S, _thread.interrupt_main)
    again.daemon = True
    again.start()
