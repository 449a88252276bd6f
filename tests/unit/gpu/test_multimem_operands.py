"""Refused multimem operands of programs, machines, texts and records, and the counts of accepted ones."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from gpu_cases import Case, Programmer, case, small_model
from gpu_multimem import multimem, star

from trine.errors import InputError, SpecError
from trine.gpu.fabric import GpuFabric
from trine.gpu.program import (
    ADD_ALL,
    COMPUTE,
    COPY,
    LOAD,
    READ_MEMBER,
    READ_SUM,
    RELEASE,
    STORE,
    WRITE_ALL,
    WRITE_MEMBER,
    is_flagged,
    same_program,
)
from trine.gpu.replayed import run_target
from trine.gpu.run import run_gpus
from trine.gpu.text import format_program, parse_program
from trine.gpu.text.summary import count_program, summary_text
from trine.gpu.validate import validate_program


def one(kind, *operands, ranks=3):
    programmer = Programmer(ranks, 1)
    programmer.kernel(0, 1, 1)
    return programmer.add(kind, 1, *operands).build()


ALL = (0, 1, 2)


@pytest.mark.parametrize(
    ("kind", "rows", "message"),
    [
        (LOAD, [(READ_MEMBER, 1, 0, 128, -1)], "operands read: 0|stands behind no multimem operand"),
        (COPY, [*multimem(READ_SUM, ALL), (WRITE_MEMBER, 1, 0, 128, -1)], "operands written: 0|behind no multimem"),
        (LOAD, multimem(READ_SUM, (0,)), "at least two members"),
        (LOAD, multimem(READ_SUM, (1, 2)), "the own rank 0 is no member"),
        (STORE, multimem(WRITE_ALL, (0, 1, 1)), "rank 1 is a member of this multimem operand twice"),
        (STORE, [*multimem(WRITE_ALL, (0,)), (WRITE_MEMBER, 1, 0, 64, -1)], "the same step"),
        (RELEASE, multimem(ADD_ALL, ALL, 0, 0, 0), "only those and releases write to all members"),
        (RELEASE, multimem(WRITE_ALL, ALL, 0, 0, -1), "has no semaphore"),
        (STORE, multimem(WRITE_ALL, ALL, 0, 128, 9000), "there is no semaphore 9000"),
        (STORE, [*multimem(WRITE_ALL, (0,)), (WRITE_MEMBER, 1, 0, 128, 0)], "all members .* are flagged or none"),
        (STORE, [(ADD_ALL, 0, 0, 128, -1), (WRITE_MEMBER, 1, 0, 128, 0)], "all members .* are flagged or none"),
        (STORE, multimem(ADD_ALL, ALL, 0, 128, 0), "all members .* are flagged or none"),
        (STORE, multimem(WRITE_ALL, (0, 3)), "there is no rank 3"),
    ],
)
def test_operands_that_are_not_well_formed(kind, rows, message):
    with pytest.raises(InputError, match=message):
        validate_program(one(kind, *rows))


def test_several_operands_of_several_ranks_stand_beside_plain_ones():
    rows = [*multimem(READ_SUM, ALL), *multimem(WRITE_ALL, ALL, 512), (1, 1, 0, 128, -1), *multimem(ADD_ALL, (2, 0), 0)]
    validate_program(one(COPY, *rows))


@pytest.mark.parametrize("topology", ["full", "switch", "ring"])
def test_machines_without_a_switch_that_adds_up(topology):
    program = one(LOAD, *multimem(READ_SUM, ALL))
    made = case(program, topology=topology)
    with pytest.raises(InputError, match=r"rank 0 reaches rank 1 over .*one switch .* that adds up and multicasts"):
        run_gpus(program, made.cluster, made.group, small_model())


def test_routes_over_one_of_several_switches():
    """With d-mod-k, pairs of members use different switches: no switch sees all members."""
    cluster = replace(star(3, 2), routing="d-mod-k")
    with pytest.raises(InputError, match="routing 'ecmp-split'"):
        GpuFabric(cluster, list(cluster.gpus), small_model()).spokes(ALL)


def test_spokes_of_several_switches_are_in_one_order():
    cluster = star(3, 2)
    model = small_model()
    spokes = GpuFabric(cluster, list(cluster.gpus), model).spokes(ALL)
    links = cluster.link_table
    for own in spokes.values():
        assert [int(links.target[spoke.up.link]) for spoke in own] == [3, 4]
        assert [int(links.source[spoke.down.link]) for spoke in own] == [3, 4]
        assert [(spoke.port_out, spoke.port_in) for spoke in own] == [(0, 0), (1, 1)]


def test_they_are_not_replayed():
    program = one(LOAD, *multimem(READ_SUM, ALL))
    cluster = star(3)
    where = program, cluster, list(cluster.gpus), small_model()
    with pytest.raises(InputError, match=r"multimem operations.* are not replayed"):
        run_target(*where, target=0)


TEXT = """
program t
ranks 4
line 128 B
buffer data 64 KiB
semaphores 2
kernel ranks all wavefronts 2
workgroups 1
  copy 4 lines multimem all:data + 1 KiB * rank -> multimem all:data + 1 KiB * rank
  store 2 lines -> multimem add own:data & rank+2:data
  store 2 lines -> multimem all:data flagged sem 0
  release multimem all sem 1, rank+1 sem 0 by 2
"""


def test_the_text_of_all_ranks():
    program = parse_program(TEXT)
    roles = program.operand_role[: int(program.operand_ptr[4])].tolist()
    summed, written = [READ_SUM, *[READ_MEMBER] * 3], [WRITE_ALL, *[WRITE_MEMBER] * 3]
    assert roles == [*summed, *written, ADD_ALL, WRITE_MEMBER, *written, *written, 1]
    assert program.operand_rank[:4].tolist() == [0, 1, 2, 3]
    assert program.operand_rank[int(program.operand_ptr[12]) :][:4].tolist() == [3, 0, 1, 2]
    assert is_flagged(program).tolist() == [*[False] * 10, *[True] * 4, *[False] * 5] * 4
    assert np.unique(program.operand_address[:8]).tolist() == [0]
    text = format_program(program)
    assert "copy 4 lines multimem all:data + 1 KiB * rank -> multimem all:data + 1 KiB * rank" in text
    assert "store 2 lines -> multimem add own:data & rank+2:data" in text
    assert "store 2 lines -> multimem all:data flagged sem 0" in text
    assert same_program(parse_program(text), program)


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("copy 4 lines all:data -> own:data", "'own', 'rank\\+1' or 'rank 2'"),
        ("load 4 lines multimem add all:data", "where 'own'"),
        ("load 4 lines multimem all:data flagged sem 1", "where the end of the line"),
        ("store 2 lines -> multimem add all:data flagged sem 0", "where the end of the line"),
        ("store 2 lines -> multimem own:data flagged sem 0 & rank+1:data", "all members .* are flagged or none"),
        ("copy 4 lines multimem own:data & own:data -> own:data", "is a member of this multimem operand twice"),
        ("copy 4 lines multimem own:data -> own:data", "at least two members"),
        ("copy 4 lines multimen all:data -> own:data", "where 'own', 'rank\\+1'"),
    ],
)
def test_wrong_texts(line, message):
    with pytest.raises(SpecError, match=message):
        parse_program(TEXT + f"  {line}\n")


def test_what_switches_are_asked_for_is_counted_by_itself():
    counts = count_program(parse_program(TEXT))
    assert counts["multimem_load_bytes"] == 4 * 4 * 128
    assert counts["multimem_store_bytes"] == 4 * (4 + 2 + 2) * 128
    assert counts["flagged_lines"] == 4 * 2
    assert counts["remote_load_bytes"] == counts["remote_store_bytes"] == counts["own_load_bytes"] == 0
    assert "2 KiB added up by switches, 4 KiB multicast by switches" in summary_text(counts)
    plain = Case(one(COMPUTE), small_model(), star(3), []).program
    assert "multimem_load_bytes" not in count_program(plain)
