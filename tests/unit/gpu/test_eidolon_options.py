"""Does the replay level refuse what contradicts, cannot matter or is unknown, and name it?"""

from __future__ import annotations

import numpy as np
import pytest
from eidolon_cases import TURN

from trine.errors import InputError, PlanError, SpecError
from trine.gpu.replay.options import EidolonOptions
from trine.gpu.replay.run import Prepared, run_eidolon
from trine.gpu.replay.sweep import sweep
from trine.gpu.replay.writes import WriteTable
from trine.gpu.text import parse_program


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"wakeup": "1 us", "symmetric": True}, "--wakeup and --symmetric"),
        ({"writes": "a.csv", "arrivals": "b.npz"}, "--writes and --arrivals"),
        ({"distribution": "uniform(1us, 2us)", "wakeup": "1 us"}, "--wakeup and --distribution"),
        ({"symmetric": True, "wakeup_from": "start"}, "--wakeup-from has no effect"),
        ({"writes": "a.csv", "straggler": {1: "1 us"}}, "--straggler has no effect"),
        ({"seed": 1}, "--seed has no effect"),
        ({"distribution": "3 us", "together": True}, "--together has no effect"),
        ({"symmetric": True, "fabric": "modelled"}, "--fabric has no effect"),
        ({"target": 1}, "--target cannot matter"),
        ({"kernel": "gemv-alreduce"}, "did you mean 'gemv-allreduce'"),
        ({"fabric": "idael"}, "did you mean 'ideal'"),
        ({"wakeup_from": "begin"}, "unknown --wakeup-from 'begin'"),
        ({"wakeup": "10"}, "--wakeup"),
        ({"wakeup": -1}, "--wakeup is not negative"),
        ({"straggler": {1: "soon"}}, "--straggler"),
        ({"straggler": ["soon"]}, "straggler is times by rank"),
        ({"straggler": {1: 5.5}}, "--straggler is a time such as '10 us', or whole picoseconds, got 5.5"),
        ({"wakeup": 5.5}, "--wakeup is a time such as '10 us', or whole picoseconds, got 5.5"),
        ({"wakeup": True}, "--wakeup is a time"),
        ({"poll": 5.5}, "--poll is a time"),
        ({"sync": "mwait", "monitor_wakeup": 5.5}, "--monitor-wakeup is a time"),
        ({"sync": "mwait", "monitor_capacity": 5.5}, "--monitor-capacity is a whole number, got 5.5"),
        ({"peers": 2.5}, "--peers is a whole number, got 2.5"),
        ({"peers": "3"}, "--peers is a whole number, got '3'"),
        ({"rows": 64.0}, "--rows is a whole number, got 64.0"),
        ({"distribution": 5.5}, "--distribution is like 'uniform(5 us, 15 us)', got 5.5"),
        ({"distribution": "normal(5, 2 us)"}, "distribution: the mean of normal needs a unit"),
        ({"peers": 0}, "--peers is a number from 1"),
        ({"kernel": "./missing.txt", "rows": 4}, "--rows is about fused kernels"),
        ({"kernel": "./missing.txt", "fused": False}, "--unfused needs a fused kernel"),
    ],
)
def test_options_that_cannot_be(given, words):
    with pytest.raises(InputError) as error:
        EidolonOptions(**given)
    assert words in str(error.value)


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"inner": 4}, "a GEMV has one vector"),
        ({"sleep": "1 us"}, "--sleep cannot matter"),
        ({"monitor_capacity": 4}, "--monitor-capacity cannot matter"),
        ({"sync": "wait"}, "unknown --sync 'wait'"),
        ({"cluster": "eidolla"}, "eidola"),
        ({"gpu_model": "mi300"}, "no GPU model"),
        ({"peers": 256, "rows": 64}, "256"),
        ({"straggler": {7: "1 us"}}, "rank 7 writes nothing"),
        ({"kernel": "./missing.txt"}, "missing.txt"),
        ({"rows": 64 * 500, "cols": 16}, "workgroups never wait for their flags"),
    ],
)
def test_runs_that_cannot_be(given, words):
    with pytest.raises((InputError, SpecError, PlanError)) as error:
        run_eidolon(EidolonOptions(**given))
    assert words in str(error.value)


def test_files_that_name_nothing(tmp_path):
    path = tmp_path / "writes.csv"
    path.write_text("peer,address,bytes,value,time_us\n1,nowhere+0x0,8,1,5\n")
    with pytest.raises(InputError, match="unknown buffer 'nowhere'"):
        run_eidolon(EidolonOptions(rows=64, cols=64, writes=str(path)))
    with pytest.raises(InputError, match="that no write satisfies"):
        run_eidolon(EidolonOptions(rows=64, cols=64, writes=WriteTable()))


def test_an_isolated_straggler_delays_and_the_others_do_not():
    base = {"rows": 128, "cols": 64, "sync": "mwait"}
    usual = run_eidolon(EidolonOptions(**base))
    late = run_eidolon(EidolonOptions(**base, straggler={2: "7 us"}))
    assert late.end_ps - usual.end_ps == pytest.approx(7_000_000, abs=10_000)
    assert late.inside.gpus[0].spurious_wakeups > 0  # two peers of three had written


def test_registered_writes_do_what_a_wake_up_time_does():
    options = {"rows": 128, "cols": 64, "peers": 2}
    prepared = Prepared(EidolonOptions(**options))
    usual = prepared.run()
    flags, data = prepared.work.flags(), prepared.work.data()
    table = WriteTable()
    for row in np.random.default_rng(3).permutation(len(flags.peer)).tolist():
        table.register_write(
            peer=int(flags.peer[row]), address=int(flags.address[row]), data=b"\x01\0\0\0\0\0\0\0",
            time_ps=prepared.waiting_ps + 10_000_000,
        )  # fmt: skip
    table.register_writes(
        peer=data.peer, address=data.address, size_bytes=data.size_bytes, time_ps=prepared.waiting_ps + 10_000_000
    )
    written = run_eidolon(EidolonOptions(**options, writes=table))
    assert (written.end_ps, written.flag_reads) == (usual.end_ps, usual.flag_reads)
    assert written.writes_delivered == usual.writes_delivered


def test_late_writes_are_a_warning():
    table = WriteTable()
    prepared = Prepared(EidolonOptions(rows=64, cols=64, peers=1))
    flags = prepared.work.flags()
    table.register_writes(peer=flags.peer, address=flags.address, size_bytes=8, value=flags.value, time_ps=0)
    table.register_write(peer=1, address="partials", size_bytes=64, time_ps=10**9)
    result = run_eidolon(EidolonOptions(rows=64, cols=64, peers=1, writes=table))
    assert result.writes_late == 1
    assert any("come after the last kernel" in words for words in result.warnings)


def test_the_fabric_takes_time():
    options = {"rows": 128, "cols": 64, "sync": "mwait"}
    ideal = run_eidolon(EidolonOptions(**options))
    modelled = run_eidolon(EidolonOptions(**options, fabric="modelled"))
    assert modelled.end_ps - ideal.end_ps >= 600_000  # two links of 300 ns
    assert "fabric not simulated" in ideal.evidence[0].detail
    assert "fabric not simulated" not in modelled.evidence[0].detail


def test_a_small_monitor_makes_the_others_spin():
    options = {"rows": 512, "sync": "mwait"}
    room, tight = (run_eidolon(EidolonOptions(**options, monitor_capacity=n, wakeup="30 us")) for n in (8, 3))
    assert room.flag_reads == 16
    assert tight.flag_reads > 40
    assert tight.document()["monitor_full"] > 0
    assert tight.non_flag_reads == room.non_flag_reads


def test_sleeping_reads_less_often():
    spin, sleep = (run_eidolon(EidolonOptions(rows=256, sync=way, wakeup="40 us")) for way in ("spin", "sleep"))
    assert sleep.flag_reads < spin.flag_reads
    assert sleep.polling_interval_ps > spin.polling_interval_ps


def test_grids_refuse_what_cannot_be():
    with pytest.raises(InputError, match="--peers has a value twice"):
        sweep(EidolonOptions(), {"peers": (3, 3)})
    with pytest.raises(InputError, match="more than 10000"):
        sweep(EidolonOptions(), {"rows": range(1, 200), "cols": range(1, 200)})
    with pytest.raises(InputError, match=r"cannot vary 'row'.*rows"):
        sweep(EidolonOptions(), {"row": (1, 2)})
    with pytest.raises(InputError, match="--wakeup and --symmetric"):
        sweep(EidolonOptions(symmetric=True), {"wakeup": (1, 2)})
    with pytest.raises(InputError, match="--monitor-capacity cannot matter"):
        sweep(EidolonOptions(monitor_capacity=1), {"sync": ("spin",)})


def test_a_grid_has_all_combinations(tmp_path):
    found = sweep(
        EidolonOptions(cols=64, monitor_wakeup="1 us"), {"rows": (64, 128), "peers": (1, 3), "sync": ("spin", "mwait")}
    )
    assert [(r["rows"], r["peers"], r["sync"]) for r in found.rows] == [
        (rows, peers, sync) for rows in (64, 128) for peers in (1, 3) for sync in ("spin", "mwait")
    ]
    assert found.fits == ()
    found.to_csv(tmp_path / "grid.csv")
    assert len((tmp_path / "grid.csv").read_text().splitlines()) == 9
    assert list(found.curves("rows")) == ["1 peers, spin", "1 peers, mwait", "3 peers, spin", "3 peers, mwait"]


def test_a_program_of_ones_own():
    program = parse_program(TURN, "turn.txt")
    result = run_eidolon(EidolonOptions(kernel=program, target=1, sync="mwait", wakeup="2 us"))
    assert result.work.peers == 2
    assert (result.flag_reads, result.non_flag_reads) == (2 + 1, 4)  # refused once, then both are there
    assert any("their data is not" in words for words in result.warnings)
    with pytest.raises(InputError, match="--target 5"):
        run_eidolon(EidolonOptions(kernel=program, target=5))
    with pytest.raises(InputError, match="--peers says 4 peers and the program says 2"):
        run_eidolon(EidolonOptions(kernel=program, peers=4))
