"""Are programs with copy-engine transfers replayed from records, and refused without arrival times?"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from trine.errors import InputError
from trine.gpu.peers import LOAD, PUT
from trine.gpu.replay.options import EidolonOptions
from trine.gpu.replay.record import record_run, request_writes
from trine.gpu.replay.run import run_eidolon
from trine.gpu.replay.writes import WriteTable
from trine.gpu.text import parse_program

#: Each rank sends 64 KiB to the next by its copy engine, then loads the received data.
RING = """program ring
ranks 4
buffer input 64 KiB
buffer landed 64 KiB
semaphores 1
kernel ring ranks all wavefronts 1
  dma 64 KiB own:input -> rank+1:landed sem 0
  acquire sem 0
  load 512 lines own:landed
"""


@pytest.fixture(scope="module")
def options(tmp_path_factory):
    path = tmp_path_factory.mktemp("dma") / "ring.txt"
    path.write_text(RING)
    return EidolonOptions(kernel=str(path), gpu_model="h100-sxm", cluster="dgx-h100", peers=3)


def test_a_record_has_when_the_semaphore_was_released_and_replays_to_the_picosecond(options):
    found = record_run(options, fold="off")
    assert found.arrivals.kind.tolist() == [PUT]
    assert len(found.arrivals.answer_ps) == 1
    end_ps = found.run.records.end_ps[found.run.graph.rank == 0].max()
    assert run_eidolon(replace(options, arrivals=found.arrivals)).end_ps == end_ps
    assert run_eidolon(replace(options, arrivals=found.arrivals, engine="reference")).end_ps == end_ps
    assert run_eidolon(replace(options, symmetric=True)).end_ps == end_ps


def test_a_later_delivery_ends_later_by_as_much(options):
    record = record_run(options, fold="off").arrivals
    usual = run_eidolon(replace(options, arrivals=record))
    late = run_eidolon(replace(options, arrivals=replace(record, time_ps=record.time_ps + 7_000_000)))
    assert 0 <= late.end_ps - usual.end_ps - 7_000_000 < usual.polling_interval_ps
    assert late.flag_reads > usual.flag_reads


def test_a_record_of_which_the_word_back_is_missing_is_refused(options):
    record = record_run(options, fold="off").arrivals
    none = {
        name: getattr(record, name)[:0] for name in ("answer_place", "answer_number", "answer_ps", "answer_refused")
    }
    for engine in ("compiled", "reference"):
        with pytest.raises(InputError, match="the record has no answer 0 for place 0 of rank 0"):
            run_eidolon(replace(options, arrivals=replace(record, **none), engine=engine))


def test_without_a_record_nobody_says_when_a_dma_is_there(options):
    table = WriteTable()
    table.register_write(peer=3, address="sem 0", size_bytes=4, value=1, time_ps=9_000_000)
    with pytest.raises(InputError, match="dma operations with replayed peers need the record of a run"):
        run_eidolon(replace(options, writes=table))


def test_as_writes_the_flags_are_where_and_when_they_were(options):
    record = record_run(options, fold="off").arrivals
    table, _ = request_writes(record)
    assert table.columns.time_ps.tolist() == record.time_ps.tolist()
    assert table.columns.value.tolist() == [1]
    program = parse_program(RING, "ring")
    operand = program.operand_ptr[np.flatnonzero(program.op_kind == program.op_kind[0])[0]] + 1
    assert table.columns.address[0] == program.operand_address[operand]
    assert LOAD not in record.kind
