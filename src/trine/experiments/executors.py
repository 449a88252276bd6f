"""Executors: this process, local processes, a Dask scheduler, or any ``concurrent.futures.Executor``."""

from __future__ import annotations

import logging
import socket
from collections.abc import Callable
from concurrent.futures import Executor, Future, ProcessPoolExecutor
from typing import Any, NamedTuple

from trine.common.processes import SerialExecutor, num_cpus, process_pool
from trine.common.units import whole_number
from trine.errors import InputError, MissingExtraError
from trine.experiments.worker import start_worker

#: Seconds to wait for a Dask scheduler's answer to one attempt, and for its lost workers.
_CONNECT_S, DASK_PATIENCE_S = 10.0, 300.0
#: Maximum length of a scheduler's first message, in bytes; it has about a hundred.
_MAX_GREETING = 1 << 20
#: Protocols of addresses, and the port of a scheduler.
_PROTOCOLS, _DASK_PORT = ("tcp", "tls", "ucx", "ws", "wss"), "8786"


class Workers(NamedTuple):
    """How to start the workers of an experiment.

    make: returns an executor; called again after a loss. is_owned: trine shuts the executor down. repeats: the executor
    itself gives the calls of a lost worker to another one. patience_s: time to wait for lost workers to come back.
    """

    make: Callable[[], Executor]
    is_owned: bool = True
    repeats: bool = False
    patience_s: float = 30.0


def make_workers(
    *, executor: Executor | None = None, processes: int | None = None, scheduler: str | None = None,
    most: int = 1 << 20, needs_script: bool = False,
) -> Workers:  # fmt: skip
    """Return the workers of an experiment: an executor, a Dask scheduler, or (by default) one process per CPU.

    executor: any ``concurrent.futures.Executor`` (submitit, executorlib, mpi4py.futures, ...); the caller shuts it
    down. scheduler: address such as ``10.0.0.1:8786``. most: number of calls, above which workers would idle.
    needs_script: see :func:`trine.common.processes.process_pool`.

    Raises InputError for more than one kind, MissingExtraError without Dask.
    """
    kinds = {"executor": executor, "processes": processes, "scheduler": scheduler}
    chosen = [name for name, value in kinds.items() if value is not None]
    if len(chosen) > 1:
        raise InputError(f"{chosen[0]} and {chosen[1]} both choose the workers: keep one", field=chosen[1])
    if executor is not None:
        repeats = not isinstance(executor, ProcessPoolExecutor | SerialExecutor)
        return Workers(lambda: executor, is_owned=False, repeats=repeats, patience_s=0.0)
    if scheduler is not None:
        return _dask_workers(scheduler)
    if processes is not None and not 1 <= processes <= 4096:
        raise InputError(f"must be 1 to 4096, got {processes}", field="processes")
    count = min(processes or num_cpus(), most)
    if count <= 1:
        return Workers(SerialExecutor)
    return Workers(lambda: process_pool(count, start_worker, needs_script=needs_script))


def _dask_workers(address: str) -> Workers:
    place = dask_address(address)
    try:
        import distributed  # noqa: F401
    except ImportError:
        raise MissingExtraError("a Dask scheduler", "dask", "dask") from None

    for name in [name for name in logging.root.manager.loggerDict if name.startswith("distributed")]:
        logging.getLogger(name).setLevel(logging.CRITICAL)  # losses are expected, and the driver reports lasting ones
    return Workers(_DaskConnection(place).make, repeats=True, patience_s=DASK_PATIENCE_S)


def dask_address(text: str) -> str:
    """Return the address of a Dask scheduler, with ``tcp://`` and Dask's port if the text leaves them out.

    Raises InputError for another protocol, or a text without a host or with a wrong port.
    """
    protocol, found, place = text.strip().rpartition("://")
    host, colon, port = place.rpartition(":")
    if not colon or place.endswith("]"):  # an IPv6 address without a port
        host, port = place, _DASK_PORT
    if (
        (found and protocol not in _PROTOCOLS)
        or not host.strip("/")
        or whole_number(port.rstrip("/"), 1, 65535) is None
    ):
        raise InputError(
            f"must be an address such as tcp://10.0.0.1:{_DASK_PORT} ({', '.join(_PROTOCOLS)}), got {text!r:.80}",
            field="scheduler",
        )
    return f"{protocol or _PROTOCOLS[0]}://{host}:{port.rstrip('/')}"


class _DaskConnection:
    """The connection to a scheduler, which is made again after a loss."""

    def __init__(self, address: str) -> None:
        self._address, self._has_connected = address, False

    def make(self) -> Executor:
        """Connect. Raises InputError if no scheduler answers the first time, and OSError later."""
        try:
            executor = _DaskExecutor(_connect(self._address))
        except (OSError, TimeoutError, ValueError) as error:
            if self._has_connected:
                raise ConnectionError(str(error)) from None
            raise InputError(
                f"no Dask scheduler answers at {self._address} in {_CONNECT_S:g} s: check host and port, or start one "
                "with 'dask scheduler'", field="scheduler",
            ) from None  # fmt: skip
        self._has_connected = True
        return executor


def _connect(address: str) -> Any:
    """Return a client. Raises OSError if no scheduler answers."""
    from distributed import Client

    protocol, _, place = address.partition("://")
    if protocol == "tcp":
        _check_server(place)
    return Client(address, timeout=_CONNECT_S, set_as_default=False)


def _check_server(place: str) -> None:
    """Check that a server greets as a Dask scheduler: with the length of its first message, as eight bytes.

    Dask itself waits forever for a silent server, and takes the length from any other one: an HTTP server's is 3 EiB.

    Raises OSError for another server, or if none answers.
    """
    host, _, port = place.rpartition(":")
    with socket.create_connection((host.strip("[]"), int(port)), _CONNECT_S) as connection:
        connection.settimeout(_CONNECT_S)
        length = b""
        while len(length) < 8 and (part := connection.recv(8 - len(length))):
            length += part
    if len(length) < 8 or int.from_bytes(length, "little") > _MAX_GREETING:
        raise ConnectionError("another server answers")


class _DaskExecutor(Executor):
    """Dask's executor, which also closes its client."""

    def __init__(self, client: Any) -> None:
        self._client, self._executor = client, client.get_executor(pure=False)
        self._max_workers = max(1, sum(map(int, client.nthreads().values())))

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        """Send a call to the scheduler."""
        future: Future[Any] = self._executor.submit(fn, *args, **kwargs)
        return future

    @property
    def is_connected(self) -> bool:
        """Whether the scheduler can be reached."""
        return bool(self._client.status == "running")

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """Cancel the calls and close the connection."""
        self._executor.shutdown(wait=False)
        self._client.close(timeout=2)
