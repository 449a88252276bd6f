"""Do the transfers of an operator-level run become writes at the right times, whichever file they went through?"""

from __future__ import annotations

import numpy as np
import pytest
from results_graphs import full_result

from trine.errors import InputError
from trine.gpu.kernels.fused.peers import PeerData, PeerFlags
from trine.gpu.replay.transfers import (
    TransferColumns,
    listed_writes,
    read_transfers,
    transfers_from,
    writes_from_transfers,
)


@pytest.fixture(scope="module")
def result():
    return full_result()


def transfers(*rows):
    return TransferColumns(*(np.array(column, np.int64) for column in zip(*rows, strict=True)))


def transfers_into(columns, is_transfer, target):
    """Return the transfers to a rank, by end, start, sender and size."""
    chosen = is_transfer & (columns["peer"] == target) & (columns["rank"] != target)
    names = ("rank", "start_ps", "end_ps", "size_bytes")
    rows = zip(*(np.asarray(columns[name])[chosen].tolist() for name in names), strict=True)
    return transfers(*sorted(rows, key=lambda row: (row[2], row[1], row[0], row[3])))


def flags(peer, workgroup):
    n = len(peer)
    return PeerFlags(
        np.arange(n, dtype=np.int32), np.arange(n, dtype=np.int64) * 64, np.array(peer, np.int32),
        np.array(workgroup, np.int32), np.ones(n, np.int64),
    )  # fmt: skip


TWO = transfers((0, 0, 10, 100), (2, 5, 20, 300), (0, 10, 40, 100), (0, 40, 90, 200))


def test_flags_stand_for_equal_parts_of_the_bytes():
    table = writes_from_transfers(TWO, flags([0, 0, 0, 0, 2], [3, 1, 2, 0, 0]))
    columns = table.columns
    by_address = dict(zip(columns.address.tolist(), columns.time_ps.tolist(), strict=True))
    # of rank 0: 100 bytes by 10 ps, 200 by 40, 400 by 90; flags of workgroups 0, 1, 2, 3 need 100, 200, 300, 400
    assert by_address == {3 * 64: 10, 1 * 64: 40, 2 * 64: 90, 0: 90, 4 * 64: 20}


def test_a_modelled_fabric_begins_when_transfers_do():
    table = writes_from_transfers(TWO, flags([0, 0, 0, 0, 2], [3, 1, 2, 0, 0]), at="start")
    assert sorted(table.columns.time_ps.tolist()) == [0, 5, 10, 40, 40]


def test_data_lands_with_the_flag_of_its_workgroup():
    data = PeerData(
        np.array([0, 0, 2], np.int32), np.array([1, -1, 0], np.int32), np.array([4096, 8192, 0], np.int64),
        np.array([256, 128, 512], np.int64),
    )  # fmt: skip
    columns = writes_from_transfers(TWO, flags([0, 0, 0, 0, 2], [3, 1, 2, 0, 0]), data).columns
    rows = dict(
        zip(zip(columns.address.tolist(), columns.size_bytes.tolist(), strict=True), columns.time_ps, strict=True)
    )
    assert rows[4096, 256] == 40
    assert rows[8192, 128] == 10
    assert rows[0, 512] == 20


def test_a_peer_that_sends_nothing_is_named():
    with pytest.raises(
        InputError, match="rank 3 writes flags, but sends nothing to the target in that run; who does: 0, 2"
    ):
        writes_from_transfers(TWO, flags([3], [0]))
    with pytest.raises(InputError, match="unknown moment 'ends'; did you mean 'end'"):
        writes_from_transfers(TWO, flags([0], [0]), at="ends")


def test_listed_writes_are_data_and_a_flag_each():
    table = listed_writes(TWO, buffer="input", first_flag=2)
    rows = [(int(p), table.address_text(r), int(s), int(t)) for r, (p, s, t) in enumerate(
        zip(table.columns.peer, table.columns.size_bytes, table.columns.time_ps, strict=True))]  # fmt: skip
    assert rows == [
        (0, "input+0x0", 100, 10), (2, "input+0x64", 300, 20), (0, "input+0x190", 100, 40), (0, "input+0x1f4", 200, 90),
        (0, "sem 2", 8, 10), (2, "sem 3", 8, 20), (0, "sem 4", 8, 40), (0, "sem 5", 8, 90),
    ]  # fmt: skip
    assert len(listed_writes(TWO, buffer="input", first_flag=None)) == 4
    wrapped = listed_writes(TWO, buffer="input", buffer_bytes=400, first_flag=None).columns.address
    assert wrapped.tolist() == [0, 100, 0, 100]
    with pytest.raises(InputError, match="a transfer of 300 bytes is larger than the 256 of the buffer"):
        listed_writes(TWO, buffer="input", buffer_bytes=256)
    with pytest.raises(InputError, match="first_flag: must not be negative, got -1"):
        listed_writes(TWO, buffer="input", first_flag=-1)


def test_transfers_of_a_result_are_the_same_from_every_file(result, tmp_path):
    table = result.record_table
    expected = transfers_into(table.columns, np.asarray(table.columns["kind"]) == 1, 1)
    assert len(expected.peer)
    assert (expected.end_ps > expected.start_ps).all()
    assert (expected.peer != 1).all()
    sent = (table.columns["kind"] == 1) & (table.columns["peer"] == 1)
    assert expected.size_bytes.sum() == table.columns["size_bytes"][sent].sum()
    result.to_npz(tmp_path / "records.npz")
    result.to_csv(tmp_path / "csv")
    for path in (tmp_path / "records.npz", tmp_path / "csv", tmp_path / "csv" / "records.csv"):
        assert all(map(np.array_equal, read_transfers(path, 1), expected))
    pytest.importorskip("pyarrow")
    result.to_parquet(tmp_path / "parquet")
    assert all(map(np.array_equal, read_transfers(tmp_path / "parquet", 1), expected))


def test_faults_of_records_are_named(result, tmp_path):
    result.to_npz(tmp_path / "whole.npz")
    with pytest.raises(InputError, match="target: no transfer to rank 9; ranks that get any: 0, 1"):
        read_transfers(tmp_path / "whole.npz", 9)
    (tmp_path / "records.csv").write_text("kind,rank\n")
    with pytest.raises(InputError, match="peer: is missing: this is no table of records"):
        read_transfers(tmp_path, 0)
    (tmp_path / "records.csv").write_text("kind,rank,peer,start_ps,end_ps,size_bytes\ntransfer,0,1,0,soon,8\n")
    with pytest.raises(InputError, match=r"records.csv:2: end_ps: must be a whole number, got 'soon'"):
        read_transfers(tmp_path, 1)
    np.savez(tmp_path / "r.npz", kind=np.zeros(1, int))
    with pytest.raises(InputError, match="rank: is missing"):
        read_transfers(tmp_path / "r.npz", 0)
    (tmp_path / "r.npz").write_bytes(b"no")
    with pytest.raises(InputError, match="is not a table of records"):
        read_transfers(tmp_path / "r.npz", 0)
    (tmp_path / "r.json").write_text("{}")
    with pytest.raises(InputError, match=r"records are .npz, .csv or .parquet"):
        read_transfers(tmp_path / "r.json", 0)
    with pytest.raises(InputError, match="No such file"):
        read_transfers(tmp_path / "x.npz", 0)


def test_times_count_from_where_they_are_asked_to():
    late = transfers_from(TWO, 5)
    assert [column.tolist() for column in late] == [[2, 0, 0], [0, 5, 35], [15, 35, 85], [300, 100, 200]]
    first = transfers_from(late._replace(start_ps=late.start_ps + 7, end_ps=late.end_ps + 7))
    assert all((a == b).all() for a, b in zip(first, late, strict=True))
    with pytest.raises(InputError, match="no transfer starts at 41 ps or later: the last starts at 40 ps"):
        transfers_from(TWO, 41)


def test_a_direct_all_to_all_drives_the_flags_of_a_fused_kernel():
    """Operator-level run of the collective; its times land as the flags and data of the kernel's peers."""
    from trine import build_topology
    from trine.collectives import make_schedule
    from trine.collectives.run import run_schedule
    from trine.gpu.kernels.fused.build import build_fused
    from trine.gpu.kernels.fused.peers import flags_of, peer_writes_of
    from trine.gpu.replay.resolve import peer_writes

    ranks = 4
    cluster = build_topology("full", "50 GB/s", "1 us", ranks)
    done = run_schedule(make_schedule("all_to_all", ranks, 2**20, algorithm="direct"), cluster, cluster.gpus)
    graph, records = done.graph, done.records
    columns = {"rank": graph.rank, "peer": graph.peer, "size_bytes": graph.size_bytes}
    columns |= {"start_ps": records.start_ps, "end_ps": records.end_ps}
    found = transfers_into(columns, graph.kind == 1, 0)
    assert sorted(set(found.peer.tolist())) == [1, 2, 3]
    assert found.end_ps.max() <= done.end_ps
    built = build_fused("gemv-allreduce", ranks, rows=256, cols=64, only_rank=0)
    flags, data = flags_of(built.program, 0), peer_writes_of(built, 0)
    table = writes_from_transfers(found, flags, data)
    writes, warnings = peer_writes(table, built.program, 0)
    assert warnings == ()
    landed = writes.semaphore >= 0
    assert landed.sum() == len(flags.peer)
    assert (~landed).sum() == len(data.peer)
    assert writes.size_bytes[~landed].sum() == data.size_bytes.sum()
    ends = {peer: set(found.end_ps[found.peer == peer].tolist()) for peer in (1, 2, 3)}
    assert all(time in ends[peer] for peer, time in zip(writes.peer.tolist(), writes.time_ps.tolist(), strict=True))


def test_all_drawn_flags_of_a_fused_kernel_satisfy_its_waits():
    from trine.gpu.kernels.fused.build import build_fused
    from trine.gpu.kernels.fused.peers import flags_of
    from trine.gpu.replay.distributions import draw_writes, parse_distribution
    from trine.gpu.replay.resolve import peer_writes

    for name in ("gemv-allreduce", "gemm-reducescatter", "gemm-alltoall"):
        inner = {} if name.startswith("gemv") else {"inner": 32}
        program = build_fused(name, 4, rows=128, cols=128, **inner, only_rank=2).program
        flags = flags_of(program, 2)
        table = draw_writes(
            peer=flags.peer, address=flags.address, size_bytes=8, value=flags.value,
            distribution=parse_distribution("uniform(1us, 2us)"), seed=1,
        )  # fmt: skip
        writes, warnings = peer_writes(table, program, 2)
        assert warnings == ()
        assert sorted(writes.semaphore.tolist()) == sorted(flags.semaphore.tolist())
