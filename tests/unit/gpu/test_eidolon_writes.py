"""Does each registered write become the right flag or data, and is what is wrong named?"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from eidolon_cases import FLAGS, INPUT, all_flags, flag, flagged_program, same, target_program

from trine.errors import InputError
from trine.gpu.replay import resolve
from trine.gpu.replay.resolve import peer_writes
from trine.gpu.replay.writes import WriteTable


def table_of(*rows):
    table = WriteTable()
    for peer, address, size_bytes, value, time_ps in rows:
        table.register_write(peer=peer, address=address, size_bytes=size_bytes, value=value, time_ps=time_ps)
    return table


def test_flags_and_data_are_told_apart_by_address():
    table = all_flags(WriteTable())
    table.register_write(peer=2, address="input + 1 KiB", size_bytes=300, time_ps=7)
    writes, warnings = peer_writes(table, target_program(), 1)
    assert warnings == ()
    assert writes.peer[0] == 2
    assert writes.address[0] == INPUT + 1024
    assert writes.size_bytes[0] == 300
    assert writes.semaphore[0] == -1
    assert writes.value[0] == 0
    assert sorted(writes.semaphore[1:].tolist()) == [0, 2, 3, 4, 6, 7]
    assert (writes.address[1:] == FLAGS + 64 * writes.semaphore[1:]).all()
    assert (writes.peer[1:] == writes.semaphore[1:] % 4).all()
    assert (writes.value[1:] == 1).all()
    assert (np.diff(writes.time_ps) >= 0).all()


def test_a_flag_is_found_by_number_name_and_semaphore():
    program = target_program()
    a = all_flags(WriteTable())
    b, c = WriteTable(), WriteTable()
    for group in range(2):
        for peer in (0, 2, 3):
            number = group * 4 + peer
            b.register_write(peer=peer, address=flag(number), size_bytes=8, value=1, time_ps=5_000_000 + number)
            c.register_write(peer=peer, address=f"sem {number}", size_bytes=8, value=1, time_ps=5_000_000 + number)
    expected = peer_writes(a, program, 1).writes
    assert same(peer_writes(b, program, 1).writes, expected)
    assert same(peer_writes(c, program, 1).writes, expected)


def test_data_stands_for_size_and_value_as_in_eidola():
    a, b = all_flags(WriteTable(), peers=(0, 2)), all_flags(WriteTable(), peers=(0, 2))
    for group in range(2):
        where = {"peer": 3, "address": flag(group * 4 + 3), "time_ps": 9}
        a.register_write(**where, data=(1).to_bytes(8, "little"))
        b.register_write(**where, size_bytes=8, value=1)
    program = target_program()
    assert same(peer_writes(a, program, 1).writes, peer_writes(b, program, 1).writes)


def test_arrays_are_the_same_as_one_by_one():
    a, b = all_flags(WriteTable()), WriteTable()
    columns = a.columns
    b.register_writes(
        peer=columns.peer,
        address=FLAGS + columns.address,
        size_bytes=columns.size_bytes,
        value=columns.value,
        time_ps=columns.time_ps,
    )
    program = target_program()
    assert len(b) == len(a) == 6
    assert same(peer_writes(a, program, 1).writes, peer_writes(b, program, 1).writes)


def test_the_fabric_is_passed_on():
    table = all_flags(WriteTable())
    assert peer_writes(table, target_program(), 1, "modelled").writes.fabric == "modelled"
    with pytest.raises(InputError, match="did you mean 'modelled'"):
        peer_writes(table, target_program(), 1, "modeled")


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ((4, INPUT, 8, 0, 0), "write 6: peer: rank 4 is no rank of the program; peers are 0 to 3 without 1"),
        ((1, INPUT, 8, 0, 0), "write 6: peer: rank 1 is the target itself"),
        ((0, "inptu", 8, 0, 0), "unknown buffer 'inptu'; did you mean 'input'"),
        ((0, "input+0x8000", 8, 0, 0), "are more than the 32768 bytes of the buffer"),
        ((0, INPUT - 1, 8, 0, 0), "outside the buffers of the target: input 0x10000 to 0x18000, flags"),
        ((0, INPUT + 0x7FFF, 2, 0, 0), "outside the buffers"),
        ((0, "sem 9", 8, 1, 0), "no operation of the program waits for or releases semaphore 9 of rank 1"),
        ((0, flag(0), 129, 1, 0), "a flag is at most a line of 128 bytes"),
    ],
)
def test_what_does_not_fit_the_target_is_refused(row, message):
    table = all_flags(WriteTable())
    peer, address, size_bytes, value, time_ps = row
    table.register_write(peer=peer, address=address, size_bytes=size_bytes, value=value, time_ps=time_ps)
    with pytest.raises(InputError, match=message):
        peer_writes(table, target_program(), 1)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"time_ps": -1}, "time_ps: -1 ps is in the past"),
        ({"size_bytes": 0}, "size_bytes: must be from 1"),
        ({"value": -2}, "value: must be from 0"),
        ({"peer": True}, "peer: must be a whole number, got True"),
        ({"peer": 1.0}, "peer: must be a whole number"),
        ({"time_ps": "1 us"}, "time_ps: must be a whole number, got '1 us'"),
        ({"address": "input+4 kB/s"}, "unknown unit 'kB/s'"),
        ({"address": -4}, "address: must be from 0"),
        ({"address": 2.5}, "must be a number, 'buffer"),
        ({"address": " "}, "must be a number, 'buffer"),
        ({"data": b"12"}, "is given beside size_bytes"),
        ({"size_bytes": None}, "is missing"),
    ],
)
def test_what_is_no_write_is_refused_when_it_is_registered(changes, message):
    row = {"peer": 0, "address": 64, "size_bytes": 8, "value": 1, "time_ps": 0} | changes
    if "data" in changes:
        del row["value"]
    with pytest.raises(InputError, match=message):
        WriteTable().register_write(**row)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"time_ps": [1, -1]}, "write 1: time_ps: -1 ps is in the past"),
        ({"peer": [0.5, 1.0]}, "peer: must be whole numbers, got float64"),
        ({"value": [1, 2, 3]}, "columns of unequal length"),
        ({"address": ["input", "flags+0xzz"]}, "write 1: address"),
        ({"size_bytes": np.array([1, 2**63], np.uint64)}, "is too large"),
    ],
)
def test_arrays_are_checked_row_by_row(changes, message):
    columns = {"peer": [0, 2], "address": [0, 64], "size_bytes": 8, "value": 1, "time_ps": 5} | changes
    with pytest.raises(InputError, match=message):
        WriteTable().register_writes(**columns)


def test_a_wait_that_no_write_satisfies_is_an_error_that_names_the_flags():
    table = all_flags(WriteTable(), peers=(0, 2))
    with pytest.raises(InputError) as caught:
        peer_writes(table, target_program(), 1)
    text = str(caught.value)
    assert "rank 1 waits for 2 flags that no write satisfies" in text
    assert "sem 3 at flags+0xc0 lacks 1 of 1 (workgroup 0 of kernel 'gemv' waits)" in text
    assert "sem 7 at flags+0x1c0 lacks 1 of 1 (workgroup 1 of kernel 'gemv' waits)" in text


def test_values_and_initial_values_count_for_waits():
    program = target_program(wait_twice=(3,))
    with pytest.raises(InputError, match=r"sem 3 at flags\+0xc0 lacks 1 of 2"):
        peer_writes(all_flags(WriteTable()), program, 1)
    program.semaphores[1, 3] = 1
    assert peer_writes(all_flags(WriteTable()), program, 1).warnings == ()


def test_own_releases_count_for_waits():
    from dataclasses import replace

    from eidolon_cases import with_buffers
    from gpu_cases import Programmer

    programmer = Programmer(2, num_semaphores=1)
    programmer.kernel(0, wavefronts=1)
    programmer.workgroup()
    programmer.release(0, 0, 2, address=flag(0)).acquire(0, 0, 3, address=flag(0))
    program = replace(with_buffers(programmer.build()))
    one = table_of((1, "sem 0", 8, 1, 0))
    assert peer_writes(one, program, 0).warnings == ()
    with pytest.raises(InputError, match="lacks 1 of 3"):
        peer_writes(WriteTable(), program, 0)


def test_flagged_lines_are_flags_line_by_line():
    program = flagged_program(4)
    table = table_of(*((1, INPUT + 128 * line, 128, 1, line) for line in range(4)))
    writes, warnings = peer_writes(table, program, 0)
    assert writes.semaphore.tolist() == [3, 4, 5, 6]
    assert warnings == ()
    with pytest.raises(InputError, match=r"sem 6 at input\+0x180 lacks 1 of 1"):
        peer_writes(table_of(*((1, INPUT + 128 * line, 128, 1, line) for line in range(3))), program, 0)


def test_a_write_may_end_where_its_buffer_ends():
    table = all_flags(WriteTable())
    table.register_write(peer=2, address="input + 0x7F00", size_bytes=256, time_ps=7)
    assert peer_writes(table, target_program(), 1).writes.address[0] == INPUT + 0x7F00
    table.register_write(peer=2, address="input + 0x7F01", size_bytes=256, time_ps=8)
    with pytest.raises(InputError, match=r"more than the 32768 bytes of the buffer"):
        peer_writes(table, target_program(), 1)


def test_the_lines_of_all_writes_are_counted(monkeypatch):
    table = all_flags(WriteTable())  # six flags, a line each
    table.register_write(peer=2, address="input + 100", size_bytes=56, time_ps=7)  # over the end of one line of 128 B
    monkeypatch.setattr(resolve, "MAX_LINES", 8)
    assert len(peer_writes(table, target_program(), 1).writes.time_ps) == 7
    table.register_write(peer=2, address="input", size_bytes=128, time_ps=8)
    with pytest.raises(InputError, match="the writes have 9 cache lines, more than 8"):
        peer_writes(table, target_program(), 1)


def test_semaphore_0_may_lie_outside_the_buffers():
    table = WriteTable()
    for number in (0, 2, 3, 4, 6, 7):
        table.register_write(peer=number % 4, address=f"sem {number}", size_bytes=8, value=1, time_ps=5)
    program = target_program()
    writes = peer_writes(table, replace(program, buffers=program.buffers[:1]), 1).writes
    assert sorted(writes.semaphore.tolist()) == [0, 2, 3, 4, 6, 7]


@pytest.mark.parametrize(("size_bytes", "warned"), [(8, True), (9, False)])
def test_values_of_up_to_8_bytes_look_like_flags(size_bytes, warned):
    table = all_flags(WriteTable())
    table.register_write(peer=0, address="flags+0x800", size_bytes=size_bytes, value=1, time_ps=0)
    assert bool(peer_writes(table, target_program(), 1).warnings) == warned


def test_flags_that_nobody_waits_for_are_warned_of_by_name():
    table = all_flags(WriteTable())
    table.register_write(peer=0, address="sem 0", size_bytes=8, value=1, time_ps=0)
    table.register_write(peer=0, address="flags+0x800", size_bytes=4, value=1, time_ps=0)
    warnings = peer_writes(table, target_program(), 1).warnings
    assert warnings == (
        "peers write flag values to addresses without a waiter (1 addresses); they are data: flags+0x800",
        "more comes to 1 flag than the waits of rank 1 take: sem 0 at flags+0x0",
    )


def test_a_flag_of_another_kernel_that_the_target_never_takes_is_warned_of():
    from eidolon_cases import with_buffers
    from gpu_cases import Programmer

    programmer = Programmer(2, num_semaphores=2)
    programmer.kernel(0, wavefronts=1)
    programmer.workgroup()
    programmer.acquire(0, 0, address=flag(0))
    programmer.kernel(1, wavefronts=1)
    programmer.workgroup()
    programmer.release(0, 1, address=flag(1))
    table = table_of((1, flag(0), 8, 1, 0), (1, flag(1), 8, 1, 0))
    warnings = peer_writes(table, with_buffers(programmer.build()), 0).warnings
    assert warnings == ("rank 0 never waits for 1 flag that peers write: sem 1 at flags+0x40",)


def test_an_address_of_two_semaphores_must_be_said_by_number():
    from eidolon_cases import with_buffers
    from gpu_cases import Programmer

    programmer = Programmer(2, num_semaphores=2)
    programmer.kernel(0, wavefronts=1)
    programmer.workgroup()
    programmer.acquire(0, 0, address=flag(0)).acquire(0, 1, address=flag(0))
    program = with_buffers(programmer.build())
    with pytest.raises(InputError, match="is the address of semaphores 0 and 1: say 'sem 0'"):
        peer_writes(table_of((1, flag(0), 8, 2, 0)), program, 0)
    writes = peer_writes(table_of((1, "sem 0", 8, 1, 0), (1, "sem 1", 8, 1, 0)), program, 0).writes
    assert writes.semaphore.tolist() == [0, 1]
    assert writes.address.tolist() == [flag(0)] * 2


@pytest.mark.parametrize(
    ("address", "size_bytes", "flags"),
    [
        ("flags+0x38", 16, "1 flag, which it does not change: sem 1 at flags+0x40"),
        ("flags+0x39", 7, None),
        ("flags+0x38", 8, None),
        ("flags+0x41", 4, "1 flag, which it does not change: sem 1 at flags+0x40"),
        ("flags+0x47", 1, "1 flag"),
        ("flags+0x48", 56, None),
        ("flags+0x41", 300, "5 flags, which it does not change: sem 1"),
        ("input", 64, None),
    ],
)
def test_data_over_the_bytes_of_flags_is_a_warning(address, size_bytes, flags):
    """Of eight flags, at multiples of 64 B."""
    table = all_flags(WriteTable())
    for number in (1, 5):
        table.register_write(peer=0, address=flag(number), size_bytes=8, value=1, time_ps=3)
    program = target_program(peers=(0, 1, 2, 3))
    table.register_write(peer=0, address=address, size_bytes=size_bytes, time_ps=9)
    warnings = peer_writes(table, program, 1).warnings
    assert len(warnings) == (flags is not None)
    assert flags is None or f"peers write data over {flags}" in warnings[0]
