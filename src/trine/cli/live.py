"""``--live`` on every command that answers: a page on this machine that shows and steers the run."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Sequence
from typing import Any

from trine.cli.output import say
from trine.common.observer import observing


def answer_live(words: str, typed: Sequence[str], command: Callable[..., None], **options: Any) -> None:
    """Run a command with its live page. Raises InputError if the server cannot start."""
    from trine.live.server import LiveServer
    from trine.live.state import LiveRun

    run = LiveRun(shlex.join(["trine", *words.split(), *typed]))
    server = LiveServer(run)
    say(f"live at {server.address}")
    try:
        with observing(control=run):
            command(**options)
    finally:
        run.finish()
        server.close()
