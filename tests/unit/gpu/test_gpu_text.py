"""Does the text form of GPU programs parse correctly, and does every error name its line?"""

import numpy as np
import pytest
from gpu_text_cases import random_program

from trine.errors import InputError, SpecError
from trine.gpu.program import (
    ACQUIRE,
    BARRIER,
    COMPUTE,
    COPY,
    DELAY,
    DMA,
    FENCE,
    LOAD,
    NOP,
    OP_NAMES,
    READ,
    READ_FLAGGED,
    REDUCE,
    RELEASE,
    STORE,
    WAITCNT,
    WRITE,
    WRITE_FLAGGED,
)
from trine.gpu.text import (
    format_program,
    is_text_program,
    parse_program,
    read_program,
    same_program,
    says_ranks,
)
from trine.gpu.text.summary import count_program, summary_text

HEAD = """
program p
ranks 4
buffer input 64 KiB
buffer output 256 KiB
semaphores 8
"""


def program(body, head=HEAD):
    return parse_program(head + "kernel 'k' rank 1 wavefronts 2\n" + body, "p.gpu")


def operations(parsed):
    """Return name, amount and operands (role, rank, address, step, semaphore) of each operation."""
    columns = zip(
        parsed.operand_role.tolist(), parsed.operand_rank.tolist(), parsed.operand_address.tolist(),
        parsed.operand_step.tolist(), parsed.operand_semaphore.tolist(), strict=True,
    )  # fmt: skip
    operands = list(columns)
    ends = parsed.operand_ptr.tolist()
    return [
        (OP_NAMES[kind], amount, operands[ends[i] : ends[i + 1]])
        for i, (kind, amount) in enumerate(zip(parsed.op_kind.tolist(), parsed.op_amount.tolist(), strict=True))
    ]


OUT, SEM = 2**20, 2 * 2**20  # buffers begin at whole MiB, then the semaphores, one line each


@pytest.mark.parametrize(
    ("line", "kind", "amount", "operands"),
    [
        ("load 32 lines own:input", LOAD, 32, [(READ, 1, 0, 128, -1)]),
        ("load 1 line own:input + 256", LOAD, 1, [(READ, 1, 256, 128, -1)]),
        ("load 4 KiB own:input, rank 3:0x80", LOAD, 32, [(READ, 1, 0, 128, -1), (READ, 3, 128, 128, -1)]),
        ("store 2 lines -> rank+1:output", STORE, 2, [(WRITE, 2, OUT, 128, -1)]),
        ("store 2 lines -> rank+3:output", STORE, 2, [(WRITE, 0, OUT, 128, -1)]),
        ("store 2 lines -> rank-2:output", STORE, 2, [(WRITE, 3, OUT, 128, -1)]),
        ("copy 3 lines rank 0:input step 64 -> own:output", COPY, 3, [(READ, 0, 0, 64, -1), (WRITE, 1, OUT, 128, -1)]),
        ("get 3 lines rank 0:input -> own:output", COPY, 3, [(READ, 0, 0, 128, -1), (WRITE, 1, OUT, 128, -1)]),
        ("reduce 1 lines own:input, rank+1:input", REDUCE, 1, [(READ, 1, 0, 128, -1), (READ, 2, 0, 128, -1)]),
        ("copy 2 lines own:input flagged sem 3 -> rank 0:output flagged sem 1 + 1", COPY, 2,
         [(READ_FLAGGED, 1, 0, 128, 3), (WRITE_FLAGGED, 0, OUT, 128, 2)]),
        ("dma 1.5 KiB own:input -> rank+1:output sem 4", DMA, 1536, [(READ, 1, 0, 0, -1), (WRITE, 2, OUT, 0, 4)]),
        ("dma -> rank+1 sem 2", DMA, 0, [(WRITE, 2, SEM + 256, 0, 2)]),
        ("acquire sem 2", ACQUIRE, 1, [(READ, 1, SEM + 256, 0, 2)]),
        ("acquire sem 2 at input + 64 by 3", ACQUIRE, 3, [(READ, 1, 64, 0, 2)]),
        ("wait sem 2", ACQUIRE, 1, [(READ, 1, SEM + 256, 0, 2)]),
        ("release rank+1 sem 0, rank 3 sem 1 by 2", RELEASE, 2, [(WRITE, 2, SEM, 0, 0), (WRITE, 3, SEM + 128, 0, 1)]),
        ("signal own sem 0", RELEASE, 1, [(WRITE, 1, SEM, 0, 0)]),
        ("waitcnt 5", WAITCNT, 5, []),
        ("fence", FENCE, 0, []),
        ("__threadfence", FENCE, 0, []),
        ("delay 70 cycles", DELAY, 70, []),
        ("barrier", BARRIER, 0, []),
        ("__syncthreads", BARRIER, 0, []),
        ("compute 100 cycles", COMPUTE, 100, []),
        ("nop", NOP, 0, []),
        ("load (3 + 7 * 2 // 4 - 1) % 4 lines own:input + -(-128)", LOAD, 1, [(READ, 1, 128, 128, -1)]),
    ],
)  # fmt: skip
def test_each_operation(line, kind, amount, operands):
    assert operations(program(line)) == [(OP_NAMES[kind], amount, operands)]


def test_unroll_and_label():
    parsed = program("load 1 line own:input unroll 8 label 'a # b'\nnop label plain # comment")
    assert parsed.op_unroll.tolist() == [8, 0]
    assert [parsed.labels[label] for label in parsed.op_label] == ["a # b", "plain"]


TEMPLATE = """
program t
ranks 3
line 64 B
buffer a 1 MiB
buffer b 1 MiB at 4 MiB
semaphores 100 at 8 MiB step 8
initially sem 1..2 = 7
initially ranks 1..2 sem 99 = 1
payload 3 MiB
note 'written by hand'
kernel first ranks all warps 2
thread blocks ranks + 1
  for d in 1..ranks-1
    copy 2 + d lines own:a + 64 * wg -> rank+d:b + 1 KiB * ((rank + d) % ranks)
    repeat 2
      for i in 0..1
        signal rank-d+wg sem 4*d + 2*i + wg // 3
      end
    end
  end
  barrier
block
  compute 1 + wg + rank * workgroups cycles
kernel rank ranks - 1
  nop
"""


def by_hand():
    """Yield the operations of TEMPLATE, rank by rank."""
    for rank in range(3):
        for wg in range(4):
            found = []
            for d in (1, 2):
                to = (rank + d) % 3
                found.append(("copy", 2 + d, [(READ, rank, 64 * wg, 64, -1), (WRITE, to, 2**22 + 1024 * to, 64, -1)]))
                for i in (0, 1, 0, 1):
                    sem = 4 * d + 2 * i + wg // 3
                    found.append(("release", 1, [(WRITE, (rank - d + wg) % 3, 2**23 + 8 * sem, 0, sem)]))
            yield from [*found, ("barrier", 0, [])]
        yield ("compute", 1 + 4 + rank * 5, [])
    yield ("nop", 0, [])


def test_ranks_workgroups_and_loops_are_written_out():
    parsed = parse_program(TEMPLATE)
    assert operations(parsed) == list(by_hand())
    assert parsed.kernel_rank.tolist() == [0, 1, 2, 2]
    assert parsed.kernel_wavefronts.tolist() == [2, 2, 2, 1]
    assert parsed.kernel_names == ("first", "first", "first", "")
    assert np.diff(parsed.kernel_ptr).tolist() == [5, 5, 5, 1]
    assert np.diff(parsed.workgroup_ptr).tolist() == [11, 11, 11, 11, 1] * 3 + [1]
    assert parsed.semaphores[:, [0, 1, 2, 3, 99]].tolist() == [[0, 7, 7, 0, 0], [0, 7, 7, 0, 1], [0, 7, 7, 0, 1]]
    assert (parsed.line_bytes, parsed.payload_bytes, parsed.notes) == (64, 3 * 2**20, ("written by hand",))
    assert same_program(parsed, parse_program(format_program(parsed)))


def test_a_program_for_any_number_of_ranks():
    text = TEMPLATE.replace("ranks 3\n", "").replace("ranks 1..2", "ranks 0..ranks-1")
    assert not says_ranks(text)
    assert says_ranks(TEMPLATE)
    assert parse_program(text, num_ranks=5).num_ranks == 5
    with pytest.raises(SpecError, match=r"p:\d+: how many ranks .* a line 'ranks N'"):
        parse_program(text, "p")
    with pytest.raises(SpecError, match="p:3: the program is for 3 ranks, not 5"):
        parse_program(TEMPLATE, "p", num_ranks=5)


def test_what_the_printed_text_looks_like():
    text = format_program(
        program("workgroups 2\nput 2 lines own:input + 4 KiB * wg -> rank+1:output\nsignal rank+1 sem wg")
    )
    assert text == (
        "program p\nranks 4\nline 128 B\nbuffer input 64 KiB\nbuffer output 256 KiB\nsemaphores 8\n\n"
        "kernel 'k' rank 1 wavefronts 2\nworkgroups 2\n  copy 2 lines own:input + 4 KiB * wg -> rank 2:output\n"
        "  release rank 2 sem wg\n"
    )


def test_memory_that_is_not_cached():
    text = (
        "program p\nranks 2\nline 64 B\nbuffer data 64 KiB\nbuffer flags 4 KiB uncached\n"
        "buffer more 64 B at flags + 4 KiB uncached\nsemaphores 8 at flags step 128\n\n"
        "kernel rank 0 wavefronts 1\nworkgroups 1\n  acquire sem 3\n"
    )
    parsed = parse_program(text)
    assert [buffer.uncached for buffer in parsed.buffers] == [False, True, True]
    assert [buffer.base for buffer in parsed.buffers] == [0, 2**20, 2**20 + 4096]
    assert parsed.operand_address.tolist() == [2**20 + 3 * 128]
    printed = format_program(parsed)
    assert "buffer flags 4 KiB uncached\n" in printed
    assert same_program(parse_program(printed), parsed)
    assert not same_program(parse_program(printed.replace("4 KiB uncached", "4 KiB").replace(" uncached", "")), parsed)
    assert count_program(parsed)["uncached_buffers"] == ["flags", "more"]
    assert "flags 4 KiB (uncached)" in summary_text(count_program(parsed))
    quoted = parse_program("program p\nranks 1\nbuffer 'uncached' 64 B\nkernel rank 0\nload 1 line own:'uncached'")
    assert (quoted.buffers[0].name, quoted.buffers[0].uncached) == ("uncached", False)
    assert same_program(parse_program(format_program(quoted)), quoted)


def test_files_are_told_apart(tmp_path):
    path = tmp_path / "p.gpu"
    path.write_text("# first\n\n  program x\r\nranks 1\nkernel rank 0\nnop\n")
    assert read_program(path).name == "x"
    assert is_text_program(path.read_text())
    assert not any(is_text_program(text) for text in ("", "{}", "<algo/>", "programs x", "ranks 2\nprogram x"))


def test_counts():
    counts = count_program(parse_program(TEMPLATE))
    copied = sum(64 * (3 + 4) * 4 * 3 for _ in "x")
    assert (counts["own_load_bytes"], counts["remote_store_bytes"]) == (copied, copied)
    assert (counts["own_store_bytes"], counts["remote_load_bytes"], counts["flagged_lines"]) == (0, 0, 0)
    assert counts["operations"] == {"copy": 24, "release": 96, "barrier": 12, "compute": 3, "nop": 1}
    assert counts["compute_cycles"] == 5 + 10 + 15
    assert counts["wavefronts"] == 3 * 5 * 2 + 1
    assert "24 copy, 96 release" in summary_text(counts)


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("lod 1 line own:input", "p.gpu:8: unknown operation 'lod'; did you mean 'load'?"),
        ("_syncthreads", "did you mean '__syncthreads'?"),
        ("load 1 line own:inptu", "p.gpu:8: unknown name 'inptu'; did you mean 'input'?"),
        ("load 32 own:input", "'own' where 'lines', or a size with a unit, should be"),
        ("load lines own:input", "'own' where 'lines'"),
        ("load 100 B own:input", "the size must be whole lines of 128 B"),
        ("load 1 lines", "the line ends where 'own', 'rank+1' or 'rank 2' should be"),
        ("load 1 lines onw:input", "did you mean 'own'?"),
        ("load 1 line own", "the line ends where ':' and an address should be"),
        ("load 1 line own:input -> own:output", "has 1 operands after '->', and needs 0"),
        ("store 1 line own:input -> own:output", "has 1 operands before '->', and needs 0"),
        ("copy 1 line own:input", "has 0 operands after '->', and needs at least 1"),
        ("put 1 line own:input -> own:output", "put copies to another rank"),
        ("get 1 line own:input -> rank+1:output", "put copies to another rank"),
        ("load 1 line rank 4:input", "the rank must be from 0 to 3, got 4"),
        ("load 1 line own:input unrol 3", "'unrol' where the end of the line should be; did you mean 'unroll'?"),
        ("load 1 line own:input unroll 0", "unroll must be from 1"),
        ("load 1 line own:input unroll 2 unroll 2", "'unroll' is given twice"),
        ("load 1 line own:input + 64 KiB", "leave one buffer of input (0 to 65536), output"),
        ("load 513 lines own:input", "addresses 0 to 65536 leave one buffer"),
        ("load 2 lines own:input step -128", "-128 is no address"),
        ("load 1 line own:-1", "the address must be from 0"),
        ("load 1 line own:input step 5000000000", "the step must be from"),
        ("load 2 lines own:input flagged sem 7", "there are no semaphores 7 to 8: each rank has 8, from 0"),
        ("load 2 lines own:input flagged 7", "'7' where 'sem' and a number should be"),
        ("acquire sem 8", "the semaphore must be from 0 to 7, got 8"),
        ("acquire 8", "'8' where 'sem' and a number should be"),
        ("acquire sem 1 by 0", "the amount: 0, must be at least 1"),
        ("release rank sem 1", "'rank' alone is nobody"),
        ("dma 10 own:input -> rank+1:output", "the size of a dma needs a unit, such as 4 KiB"),
        ("dma 4 KiB rank+1:input -> rank+2:output", "must be of the own rank 1, not of rank 2"),
        ("dma 4 KiB own:input", "the line ends where '->' and a target should be"),
        ("dma 65 KiB own:input -> rank+1:output", "leave one buffer"),
        ("dma -> rank+1", "the line ends where 'sem' and a number should be"),
        ("waitcnt", "how many may be unfinished"),
        ("barrier 2", "'2' where the end of the line should be"),
        ("compute 5", "the line ends where 'cycles' should be"),
        ("compute 1.5 cycles", "1.5 must be a whole number"),
        ("compute 1 // 0 cycles", "division by zero"),
        ("compute 0 - 1 cycles", "how much must be from 0"),
        ("compute 4000000000 * 4000000000 cycles", "a number is larger than"),
        ("compute 99999999999999999999999999999999999999999999 cycles", "is too large"),
        ("compute ((((((((((1)))))))))) cycles", "more than 8 parentheses"),
        ("compute " + "1 + " * 50 + "1 cycles", "more than 32 terms"),
        ("compute " + "1 * " * 50 + "1 cycles", "more than 32 factors"),
        ("nop label 'x", "a name in quotes has no end"),
        (r"nop label '\x'", r"unknown escape"),
        ("nop ; nop", "unexpected ';'"),
        ("ranks 3", "'ranks' must stand before the first kernel"),
        ("end", "'end' without 'for' or 'repeat'"),
        ("for d in 1..3\nnop", "the loop of p.gpu:8 has no 'end'"),
        ("for input in 1..3\nend", "'input' means something else"),
        ("for d in 1..wg\nend", "unknown name 'wg'"),
        ("for d in 5..3\nend", "the last number must be from 4"),
        ("repeat 2\n" * 9, "more than 8 loops inside each other"),
        ("repeat 2000\nrepeat 2000\nnop\nend\nend", "more than 2000000 operations"),
        ("workgroups 3000000\nnop", "the number of workgroups must be from 1 to"),
        ("workgroups 0\nnop", "the number of workgroups must be from 1 to"),
        ("workgroups 1000000\nrepeat 3\nnop\nend", "more than 2000000 operations"),
        ("kernel rank 4\nnop", "the kernel has no workgroups"),
        ("nop\nkernel rank 4\nnop", "the rank must be from 0 to 3, got 4"),
        ("nop\nkernel ranks 2..1\nnop", "the last rank must be from 2 to 3, got 1"),
        ("nop\nkernel rank 0 wavefront\nnop", "the line ends where the number of wavefronts should be"),
        ("nop\nkernel rank 0 wavefronts 0\nnop", "the number of wavefronts must be from 1"),
        ("nop\nkernel rank 0 waves 2\nnop", "where the end of the line should be; did you mean 'wavefronts'?"),
        ("nop\nkernel wavefronts 2", "'2' where 'rank' and a number, 'ranks all' or 'ranks 0..3' should be"),
    ],
)
def test_mistakes_name_the_line(line, message):
    with pytest.raises(SpecError) as caught:
        program(line)
    assert "p.gpu:" in str(caught.value)
    assert message in str(caught.value)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "is empty"),
        ("ranks 2", "p.gpu:1: 'ranks' where 'program' and a name"),
        ("program a\nprogram b", "p.gpu:2: 'program' is given twice"),
        ("program a\nranks 0", "the number of ranks must be from 1 to 4096, got 0"),
        ("program a\nranks 2\nranks 2", "'ranks' is given twice"),
        ("program a\nranks 2", "the program has no kernel"),
        ("program a\nrnaks 2", "p.gpu:2: unknown word 'rnaks' before the first kernel; did you mean 'ranks'?"),
        ("program a\nline 0", "the size of a cache line must be from 1"),
        ("program a\nbuffer x 1 KiB\nbuffer x 1 KiB", "there are two buffers 'x'"),
        ("program a\nbuffer rank 1 KiB", "put the buffer's name in quotes"),
        ("program a\nbuffer x 1 Kb", "'Kb' where"),
        ("program a\nbuffer uncached 1 KiB", "put the buffer's name in quotes"),
        ("program a\nbuffer x 1 KiB uncahed", "the end of the line should be; did you mean 'uncached'?"),
        (
            "program a\nranks 1\nbuffer f 4 KiB uncached\nbuffer x 4 KiB\nbuffer g 4 KiB uncached\nkernel rank 0\nnop",
            "buffer 'x' is cached, and lies between uncached buffers, or in a line with one: the lines of f, g, 0 to",
        ),
        ("program a\nbuffer x -1", "the size of a buffer must be from 0"),
        ("program a\nsemaphores 2\nbuffer x 1 KiB", "buffers must stand before the semaphores"),
        ("program a\nsemaphores 99999999999", "the number of semaphores of a rank must be from 0 to"),
        ("program a\nranks 2\nsemaphores 2\ninitially sem 2 = 1", "a semaphore must be from 0 to 1, got 2"),
        ("program a\nranks 2\nsemaphores 2\ninitially rank 2 sem 0 = 1", "a rank must be from 0 to 1, got 2"),
        ("program a\nranks 2\nsemaphores 2\ninitially sem 0 1", "'1' where '=' and a value should be"),
    ],
)
def test_mistakes_of_the_head(text, message):
    with pytest.raises(SpecError) as caught:
        parse_program(text, "p.gpu")
    assert message in str(caught.value)


def test_turns_of_nothing_take_no_memory():
    assert program("repeat 2000000\nrepeat 2000000\nend\nend\nnop").num_ops == 1


def test_too_large_in_all():
    with pytest.raises(SpecError, match="more than 67108864 semaphores in all"):
        parse_program("program a\nsemaphores 100000\nranks 4096\nkernel rank 0\nnop")


def test_a_text_that_would_be_too_long():
    big = next(random_program(seed) for seed in range(100) if random_program(seed).num_ops > 20)
    with pytest.raises(InputError, match="more than 20 lines"):
        format_program(big, max_lines=20)
