"""Writes that need no profile: from transfers of an operator-level run."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from trine.arrays import Int64
from trine.collectives.kernels.fused.peers import PeerData, PeerFlags
from trine.errors import InputError, nearest
from trine.replay.transfers import Transfers
from trine.replay.writes import WriteTable

#: When what a transfer brings lands: at its end; or, where a modelled fabric carries it, it leaves at its start.
END, START = "end", "start"
MOMENTS = (END, START)
#: Of a flag.
FLAG_BYTES = 8


def writes_from_transfers(
    transfers: Transfers, flags: PeerFlags, data: PeerData | None = None, *, at: str = END
) -> WriteTable:
    """What the peers of a kernel's target write, at the times at which transfers brought as much.

    A peer's flags, in the order of the workgroups that wait for them, stand for equal parts of the bytes that the peer
    sent: flag i of n lands with the transfer that brings part i + 1 of n. Data lands with the flag of its workgroup
    (that of no workgroup with the first).

    Parameters
    ----------
    flags, data: what peers are to write (:mod:`trine.collectives.kernels.fused.peers`).
    at: ``end`` of the transfer, for an ideal fabric; ``start``, for a modelled one, which takes its own time.

    Raises
    ------
    InputError: a peer that writes a flag, but sends nothing.
    """
    _check_moment(at)
    table = WriteTable()
    moments = transfers.end_ps if at == END else transfers.start_ps
    for peer in np.unique(flags.peer).tolist():
        mine = transfers.peer == peer
        if not mine.any():
            raise InputError(
                f"rank {peer} writes flags, but sends nothing to the target in that run; who does: "
                f"{', '.join(map(str, np.unique(transfers.peer)[:20].tolist()))}",
                field="transfers",
            )
        rows = np.flatnonzero(flags.peer == peer)
        rows = rows[np.lexsort((flags.address[rows], flags.workgroup[rows]))]
        times = _shares(transfers.size_bytes[mine], moments[mine], len(rows))
        table.register_writes(
            peer=peer, address=flags.address[rows], size_bytes=FLAG_BYTES, value=flags.value[rows], time_ps=times
        )
        if data is not None:
            _add_data(table, data, peer, flags.workgroup[rows], times)
    return table


def listed_writes(
    transfers: Transfers, *, buffer: str, buffer_bytes: int | None = None, first_flag: int | None = 0, at: str = END
) -> WriteTable:
    """Each transfer as one write of data, and one of a flag, for a program that somebody writes for them.

    Transfers in the order of end, start and sender: number i lies in ``buffer`` behind those before it (from the
    beginning again where ``buffer_bytes`` do not hold it), and adds 1 to semaphore ``first_flag`` + i. first_flag None:
    data alone.

    Raises
    ------
    InputError: a transfer that is larger than the buffer, a negative flag.
    """
    _check_moment(at)
    if first_flag is not None and first_flag < 0:
        raise InputError(f"must not be negative, got {first_flag}", field="first_flag")
    some = transfers.size_bytes > 0
    size = transfers.size_bytes[some]
    offset = _laid_out(size, buffer_bytes)
    moments = transfers.end_ps if at == END else transfers.start_ps
    table = WriteTable()
    table.register_writes(
        peer=transfers.peer[some],
        address=[f"{buffer}+0x{place:x}" for place in offset.tolist()],
        size_bytes=size,
        time_ps=moments[some],
    )
    if first_flag is not None:
        table.register_writes(
            peer=transfers.peer,
            address=[f"sem {first_flag + number}" for number in range(len(moments))],
            size_bytes=FLAG_BYTES,
            value=1,
            time_ps=moments,
        )
    return table


def _check_moment(at: str) -> None:
    if at not in MOMENTS:
        raise InputError(f"unknown moment {at!r}{nearest(at, MOMENTS)}", field="at")


def _shares(size: Int64, moment: Int64, number: int) -> Int64:
    """int64[number]: when part i + 1 of ``number`` of all bytes was there; transfers in the order of their moments."""
    order = np.lexsort((size, moment))
    total = np.cumsum(size[order])
    # part i + 1 of n is there when total >= all * (i + 1) / n; whole numbers, so that nothing is rounded
    wanted = -(-int(total[-1]) * np.arange(1, number + 1, dtype=object) // number)
    return np.asarray(moment[order][np.searchsorted(total, wanted.astype(np.int64), "left")])


def _add_data(table: WriteTable, data: PeerData, peer: int, workgroup: npt.NDArray[np.int32], times: Int64) -> None:
    rows = np.flatnonzero(data.peer == peer)
    if not len(rows):
        return
    known, first = np.unique(workgroup, return_index=True)
    place = np.minimum(np.searchsorted(known, data.workgroup[rows]), len(known) - 1)
    known_there = known[place] == data.workgroup[rows]
    moment = np.where(known_there, times[first[place]], times.min())
    table.register_writes(peer=peer, address=data.address[rows], size_bytes=data.size_bytes[rows], time_ps=moment)


def _laid_out(size: Int64, buffer_bytes: int | None) -> Int64:
    """Where each begins: behind the one before, or at the beginning again where it would not fit."""
    if buffer_bytes is None:
        return np.asarray(np.cumsum(size) - size)
    if len(size) and int(size.max()) > buffer_bytes:
        raise InputError(f"a transfer of {int(size.max())} bytes is larger than the {buffer_bytes} of the buffer")
    places, at = [], 0
    for length in size.tolist():
        at = 0 if at + length > buffer_bytes else at
        places.append(at)
        at += length
    return np.array(places, np.int64)
