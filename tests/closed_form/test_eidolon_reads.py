"""Do the reads of a replayed fused kernel follow from its wake-up time and its data flow?"""

from __future__ import annotations

import numpy as np
import pytest

from trine.gpu.kernels.fused.build import known_fused
from trine.gpu.replay.options import EidolonOptions
from trine.gpu.replay.run import Prepared, run_eidolon
from trine.gpu.replay.sweep import sweep
from trine.gpu.replay.writes import WriteTable
from trine.gpu.text import parse_program

WAKEUPS = [step * 6_700_000 for step in range(16)]
#: Way to a channel and back: two links of 64 GB/s for 16 B and 50 ns each; there 16 B at 38.4 GB/s, and 180 ns.
READ_PS = 2 * (2 * 250 + 50_000) + 417 + 180_000
#: Five instructions of 4 cycles at 1 GHz, and a read past the L2.
INTERVAL_PS = 5 * 4_000 + READ_PS


@pytest.fixture(scope="module")
def grid():
    return sweep(EidolonOptions(rows=256), {"wakeup": WAKEUPS, "sync": ("spin", "mwait")})


def reads_of(grid, sync, key="flag_reads"):
    return np.array([row[key] for row in grid.rows if row["sync"] == sync])


def test_flag_reads_grow_linearly_when_spinning(grid):
    reads = reads_of(grid, "spin")
    slope, start = np.polyfit(WAKEUPS, reads, 1)
    rest = reads - start - slope * np.array(WAKEUPS)
    assert 1 - (rest**2).sum() / ((reads - reads.mean()) ** 2).sum() >= 0.99
    # 4 tiles of 64 rows, each with one wavefront that waits
    assert slope == pytest.approx(4 / INTERVAL_PS, rel=0.02)
    assert grid.rows[0]["polling_interval_s"] == pytest.approx(INTERVAL_PS / 1e12)
    assert grid.fits[0].slope_per_s == pytest.approx(slope * 1e12)
    assert grid.fits[0].r2 >= 0.99


@pytest.mark.parametrize("waits", ["single", "joint"])
@pytest.mark.parametrize("fused", [True, False])
@pytest.mark.parametrize("kernel", known_fused())
def test_a_lone_wavefront_reads_flags_of_every_kernel_past_the_l2(kernel, fused, waits):
    """To the picosecond: flags that land eight intervals later are read eight times more. A line a chunk: no queues."""
    small = {"rows": 16, "cols": 16} if kernel.startswith("gemv") else {"rows": 4, "cols": 16, "inner": 16}
    prepared = Prepared(EidolonOptions(kernel=kernel, fused=fused, flags=waits, **small))
    early, late = (prepared.run(wakeup=wakeup) for wakeup in (33_000_000, 33_000_000 + 8 * INTERVAL_PS))
    assert early.polling_interval_ps == INTERVAL_PS
    assert early.waiting_wavefronts == 1
    assert late.flag_reads - early.flag_reads == 8
    assert late.wait_total_ps - early.wait_total_ps == late.end_ps - early.end_ps == 8 * INTERVAL_PS


def test_each_spinning_wavefront_reads_once_an_interval(grid):
    """All flags land at once; who began to wait at t reads at t, t + interval, ... until the flag is there."""
    prepared = Prepared(EidolonOptions(rows=256))
    result = prepared.run(wakeup="33 us")
    starts = result.acquires_ps[:, 0]
    land_ps = prepared.waiting_ps + 33_000_000
    intervals = (land_ps - starts) / result.polling_interval_ps
    least, most = np.ceil(intervals - 0.2).sum(), (np.ceil(intervals + 0.2) + 1).sum()
    assert least <= result.flag_reads <= most


def test_flag_reads_are_flat_with_mwait(grid):
    reads = reads_of(grid, "mwait")
    # one that is refused, and one after the wake-up; who arrives with the flag reads once
    assert (reads[1:] == 2 * 4).all()
    assert reads[0] <= 2 * 4


def test_other_reads_are_those_of_the_data_flow(grid):
    # 256 rows of 64 lines, 4 times the vector of 64 lines, and 4 ranks' 256 partial results of 4 B
    expected = 256 * 64 + 4 * 64 + 4 * 256 * 4 // 64
    assert (reads_of(grid, "spin", "non_flag_reads") == expected).all()
    assert (reads_of(grid, "mwait", "non_flag_reads") == expected).all()


def test_mwait_pays_from_the_second_read_on(grid):
    fit = grid.fits[0]
    # when the first of them finds nothing with its second read: an interval and a read behind its start, and all wait
    # within less than a read
    assert 0 < fit.break_even_s * 1e12 - INTERVAL_PS < READ_PS
    assert fit.saved >= 0.8


@pytest.mark.parametrize("groups", [8, 24, 40])
def test_flags_that_land_one_by_one_wake_all_that_wait_for_their_line(groups):
    """Eight flags share a line: a read of each flag that finds nothing, and 8 + 7 + ... + 1 a line after wake-ups."""
    peers = 3
    program = parse_program(
        f"program waits\nranks 4\nline 64 B\nbuffer flags 4 KiB uncached\nsemaphores {peers * groups} at flags step 8\n"
        f"kernel rank 0\nworkgroups {groups}\nfor d in 0..{peers - 1}\nacquire sem {groups} * d + wg\nend\n"
    )
    writes = WriteTable()
    for flag in range(peers * groups):
        writes.register_write(
            peer=1 + flag // groups, address=program.buffers[0].base + 8 * flag, size_bytes=8, value=1,
            time_ps=10_000_000 + 1_000_000 * flag,
        )  # fmt: skip
    result = run_eidolon(EidolonOptions(kernel=program, writes=writes, sync="mwait"))
    lines = peers * groups // 8
    assert result.flag_reads == peers * groups + lines * (8 * 9 // 2)
    assert result.inside.gpus[0].spurious_wakeups == lines * (7 * 8 // 2)


def test_wait_is_what_the_wake_up_time_says():
    result = Prepared(EidolonOptions(rows=256, sync="mwait", monitor_wakeup="0 us")).run(wakeup="20 us")
    starts = result.acquires_ps[:, 0]
    land_ps = int(result.incoming.outside.time_ps.max())
    assert land_ps == int(starts.max()) + 20_000_000
    back_ps = READ_PS
    assert result.wait_ps == pytest.approx(land_ps - starts.mean() + back_ps, abs=40_000)
    assert result.wait_total_ps // 4 == result.wait_ps


@pytest.mark.parametrize("fused", [True, False])
@pytest.mark.parametrize("kernel", known_fused())
def test_every_kernel_reads_what_its_data_flow_says(kernel, fused):
    small = {"rows": 64, "cols": 128, **({} if kernel.startswith("gemv") else {"inner": 32})}
    result = run_eidolon(EidolonOptions(kernel=kernel, fused=fused, **small))
    assert result.finished
    assert not result.warnings
    assert result.non_flag_reads == result.work.non_flag_reads
    assert result.writes_late == 0


def test_from_the_start_a_late_target_reads_each_flag_once():
    result = run_eidolon(EidolonOptions(rows=256, flags="single", wakeup="0 us", wakeup_from="start"))
    assert result.flag_reads == 4 * 3  # 4 tiles, 3 peers
    assert result.writes_delivered == 2 * 4 * 3  # a flag and a row of partial results each
