"""Does the C++ loop in benchmarks/ still match the compiled loop, and refuse unsupported cases?"""

import importlib.util
import shutil
from pathlib import Path

import pytest

BENCHMARK = Path(__file__).parents[2] / "benchmarks" / "bench_gpu_loop.py"


@pytest.fixture(scope="module")
def bench():
    spec = importlib.util.spec_from_file_location("bench_gpu_loop", BENCHMARK)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def program(bench, tmp_path_factory):
    if shutil.which("g++") is None:
        pytest.skip("no g++")
    state = bench.new_state(bench.system_of(2, 1 << 12, "put"))
    return bench.compile_here("g++", "-O0", state, tmp_path_factory.mktemp("gpu_loop"))


@pytest.mark.parametrize(("algorithm", "gpus"), [("put", 2), ("put", 5), ("get", 3)])
def test_all_that_is_known_at_the_end_is_the_same(bench, program, algorithm, gpus, capsys):
    begin = bench.with_room(bench.system_of(gpus, gpus << 15, algorithm))
    bench.compare(algorithm, begin, program, 1)
    assert capsys.readouterr().out.startswith(algorithm)


def test_one_picosecond_more_is_noticed(bench, program):
    begin = bench.with_room(bench.system_of(2, 1 << 15, "put"))
    tables, result = program.with_name("later"), program.with_name("later_result")
    other = bench.copy_of(begin)
    other.models["memory_ps"] += 1
    bench.write_tables(other, tables)
    bench.run_there(program, tables, result)
    state = bench.copy_of(begin)
    assert bench.run_here(state)[0] == bench.S.FINISHED
    assert {"machine_resources", "counters_op_end"} <= {*bench.differences(state, result)}


@pytest.mark.parametrize(
    ("field", "value", "said"),
    [("is_fair", 1, "only GPU models"), ("recorded_gpu", 0, "no replayed peers"), ("first_host", 1, "no hosts")],
)
def test_what_it_does_not_simulate_is_refused(bench, program, field, value, said):
    state = bench.new_state(bench.system_of(2, 1 << 12, "put"))
    state.models[field] = value
    tables = program.with_name("refused")
    bench.write_tables(state, tables)
    with pytest.raises(SystemExit, match=said):
        bench.run_there(program, tables, program.with_name("nothing"))


def test_operations_that_it_has_not_are_refused(bench, program):
    state = bench.new_state(bench.system_of(2, 1 << 12, "put"))
    state.tables.program.op_kind[0] = bench.operations.DMA
    bench.write_tables(state, program.with_name("refused"))
    with pytest.raises(SystemExit, match="only programs of"):
        bench.run_there(program, program.with_name("refused"), program.with_name("nothing"))


def test_too_little_room_is_said(bench, program):
    state = bench.new_state(bench.system_of(2, 1 << 15, "put"))
    state.clock.num_free_requests = 16
    bench.write_tables(state, program.with_name("small"))
    with pytest.raises(SystemExit, match="more requests at a time"):
        bench.run_there(program, program.with_name("small"), program.with_name("nothing"))


def test_no_compiler(bench, tmp_path):
    with pytest.raises(SystemExit, match="C\\+\\+17 compiler"):
        bench.compile_here("no-such-compiler", "", bench.new_state(bench.system_of(2, 1 << 12, "put")), tmp_path)
