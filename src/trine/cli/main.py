"""The command line: a thin layer over the Python API."""

from __future__ import annotations

import gc
import os
import sys
import warnings

import typer

from trine._jit_files import CacheWarning
from trine._version import __version__
from trine.cli import (
    calibrate,
    chakra,
    check,
    cluster,
    cluster_files,
    collective,
    eidolon,
    gpu,
    graph,
    hop,
    kernel,
    study,
    trace,
    train,
    validate,
    warmup,
)
from trine.cli.interrupt import keep_interrupts
from trine.cli.streams import end_streams, keep_streams
from trine.cli.usage import OneLineGroup

app = typer.Typer(
    name="trine",
    cls=OneLineGroup,
    help="How long does a training step, a collective or a kernel take on N GPUs, and why? Simulated, without them.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _version(asked: bool) -> None:
    if asked:
        typer.echo(f"trine {__version__}")
        raise typer.Exit


@app.callback()
def root(
    version: bool = typer.Option(False, "--version", callback=_version, is_eager=True, help="Print the version."),
) -> None:
    """How long does a training step, a collective or a kernel take on N GPUs, and why? Simulated, without them."""


train.register(app)
graph.register(app)
calibrate.register(app)
warmup.register(app)
collective.register(app)
check.register(app)
hop.register(app)
validate.register(app)
study.register(app)
app.add_typer(trace.app, name="trace", help="Look into, convert and capture traces.")
app.add_typer(chakra.app, name="chakra", help="Chakra execution traces: look into and simulate them.")
cluster_files.register(cluster.app)
app.add_typer(cluster.app, name="cluster", help="Look at clusters: presets and files.")
app.add_typer(gpu.app, name="gpu", help="Look at the inside of GPUs: models and files.")
app.add_typer(eidolon.app, name="eidolon", help="One GPU in detail, its peers replayed: waiting, flags, mwait.")
app.add_typer(kernel.app, name="kernel", help="GPU programs, load by load and store by store: run and print them.")


def _one_line(
    message: Warning | str, category: type[Warning], filename: str, lineno: int, line: str | None = None
) -> str:
    """A warning of trine's own as people at a terminal read it; others as Python shows them."""
    if issubclass(category, CacheWarning):
        return f"note: {message}\n"
    return f"{filename}:{lineno}: {category.__name__}: {message}\n"


def main() -> None:
    """Entry point of the ``trine`` command.

    A short process: the garbage collector would cost it a quarter of a second, and so would taking numba apart at its
    end (measured by benchmarks/bench_train.py), so it runs without the one and leaves without the other.
    """
    gc.disable()
    keep_interrupts()
    keep_streams()
    warnings.formatwarning = _one_line
    code: object = 0
    try:
        app()
    except SystemExit as stop:
        code = stop.code
    number = code if isinstance(code, int) else 0 if code is None else 1
    if "torch" in sys.modules:  # a capture: torch has threads and files of its own to close
        sys.exit(end_streams(number))
    os._exit(end_streams(number))
