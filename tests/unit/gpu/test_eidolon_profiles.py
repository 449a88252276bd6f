"""Do profiles of ROCm's and NVIDIA's tools become the right writes, and do errors ask for missing information?"""

from __future__ import annotations

from pathlib import Path

import pytest

from trine.errors import InputError
from trine.gpu.replay.profile_rows import device_of, matches, read_rows
from trine.gpu.replay.profiles import read_profile

DATA = Path(__file__).parents[2] / "data" / "profiles"
ROCM = [DATA / f"rocprofv3_{name}.csv" for name in ("kernel_trace", "memory_copy_trace", "marker_api_trace")]


def rows_of(profile):
    table = profile.table
    columns = table.columns
    rows = [
        (int(columns.time_ps[row]), int(columns.peer[row]), table.address_text(row), int(columns.size_bytes[row]),
         int(columns.value[row]))
        for row in range(len(table))
    ]  # fmt: skip
    return sorted(rows)


def changed(tmp_path, source, *changes):
    text = (DATA / source).read_text()
    for old, new in changes:
        assert old in text
        text = text.replace(old, new)
    path = tmp_path / source
    path.write_text(text)
    return path


def test_rocprofv3_copies_kernels_and_ranges():
    profile = read_profile(ROCM, DATA / "rocm.yaml")
    assert rows_of(profile) == [
        (8_000_000, 0, "input+0x0", 4096, 0),
        (11_000_000, 0, "input+0x1000", 4096, 0),
        (12_500_000, 0, "flags+0x0", 8, 1),
        (19_500_000, 2, "flags+0x40", 8, 1),
        (20_000_000, 2, "flags+0x40", 8, 1),
    ]
    notes = " ".join(profile.notes)
    assert "rocprofv3 kernel_trace, 5 rows" in notes
    assert "rocprofv3 marker_api_trace, 3 rows" in notes
    assert "1 writes before the start of the target's kernel ignored" in notes
    assert "1 writes after the end of the target's kernel ignored" in notes
    assert "1 rows ignored by the mapping" in notes


def test_the_first_launch_is_another_run(tmp_path):
    mapping = changed(tmp_path, "rocm.yaml", ("launch: 1", "launch: 0"))
    with pytest.raises(InputError, match="no row is a write of a peer into device '2'"):
        read_profile(ROCM, mapping)


def test_rocprof_results(tmp_path):
    mapping = changed(tmp_path, "rocm.yaml", ("launch: 1", "launch: 0"))
    profile = read_profile(DATA / "rocprof_results.csv", mapping)
    assert rows_of(profile) == [(12_500_000, 0, "flags+0x0", 8, 1)]
    assert profile.notes[0].endswith("rocprof results, 2 rows")


def test_nsight_systems_trace_of_the_gpus():
    profile = read_profile(DATA / "nsys_cuda_gpu_trace.csv", DATA / "nvidia.yaml")
    assert rows_of(profile) == [(8_000_000, 0, "input+0x0", 8192, 0), (12_500_000, 0, "flags+0x0", 8, 1)]
    assert "1 copies without a destination in the profile assumed to go to the target" in profile.notes


def test_bytes_count_only_where_they_are_exact(tmp_path):
    mapping = changed(tmp_path, "nvidia.yaml", (", bytes: 8 KiB", ""))
    with pytest.raises(InputError, match=r"nsys_cuda_gpu_trace.csv:4: bytes: the profile has no exact byte count"):
        read_profile(DATA / "nsys_cuda_gpu_trace.csv", mapping)
    exact = changed(
        tmp_path, "nsys_cuda_gpu_trace.csv", ("Bytes (MB)", "Bytes (B)"), ("0.004", "4096"), ("4.194", "4194304")
    )
    assert rows_of(read_profile(exact, mapping))[0] == (8_000_000, 0, "input+0x0", 4096, 0)
    with pytest.raises(InputError, match="the profile says 4096 bytes, the rule 8192"):
        read_profile(exact, DATA / "nvidia.yaml")


def test_cupti_copies_with_their_devices(tmp_path):
    mapping = changed(tmp_path, "nvidia.yaml", ('kernel: "gemv_allreduce(*"', "start_ns: 1000000"))
    profile = read_profile(DATA / "cupti_memcpy.csv", mapping)
    assert rows_of(profile) == [(8_000_000, 0, "input+0x0", 8192, 0)]
    assert len(profile.notes) == 1  # the host's copy is not a peer's, and the target's copy goes elsewhere


@pytest.mark.parametrize("source", ["nsys_nvtx_gpu_proj_trace.csv", "nsys_nvtx_pushpop_trace.csv"])
def test_ranges_that_name_their_writes(tmp_path, source):
    mapping = changed(tmp_path, "nvidia.yaml", ('kernel: "gemv_allreduce(*"', "start_ns: 1000000"))
    profile = read_profile(DATA / source, mapping)
    assert rows_of(profile) == [(12_500_000, 0, "flags+0x0", 8, 1)]


def test_columns_of_ones_own(tmp_path):
    rows = tmp_path / "own.csv"
    rows.write_text("What,From,To,Begin (us),Took (us),Amount\nput,0,2,3,1.5,64\nput,1,2,9,1,64\n")
    mapping = tmp_path / "own.yaml"
    mapping.write_text(
        "target: 2\npeers: {0: 0, 1: 3}\nstart_ns: 1000\n"
        "columns: {name: What, device: From, other: To, start: Begin, duration: Took, bytes: Amount}\n"
        "writes: [{address: 0x100, step: 64 B}]\n"
    )
    assert rows_of(read_profile(rows, mapping)) == [(3_500_000, 0, "0x100", 64, 0), (9_000_000, 3, "0x100", 64, 0)]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ([("target:", "traget:")], "unknown key 'traget'; did you mean 'target'"),
        ([("gemv_allreduce(*", "gemv_alreduce(*")], "device '2' has no kernel 'gemv_alreduce"),
        ([("launch: 1", "launch: 2")], "launch: must be below 2, the launches in the profile"),
        ([("3: 2,", "2: 2,")], "peers: device '2' is the target"),
        ([("3: 2,", "3: 0,")], "rank 0 is there twice"),
        ([("{1: 0, 3: 2,", "{3: 2,")], r"memory_copy_trace.csv:3: peers: device '1' is no peer"),
        ([("at: start", "at: middle")], "unknown at 'middle'"),
        ([(", address: input, step: 4 KiB, bytes: 4 KiB", "")], "needs an address, or 'ignore: true', and not both"),
        ([("*DEVICE_TO_DEVICE", "*D2D")], "a copy of device '1' to the target, but no rule of .* sets its address"),
        ([("rows: kernel", "rows: kernels")], "unknown rows 'kernels'; did you mean 'kernel'"),
        ([('kernel: "gemv_allreduce(*"\n', "")], "needs the kernel of the target whose start is time 0, or start_ns"),
        ([("bytes: 4 KiB", "bytes: 4096")], "needs a unit"),
    ],
)  # fmt: skip
def test_faults_of_a_mapping_are_named(tmp_path, changes, message):
    mapping = changed(tmp_path, "rocm.yaml", *changes)
    with pytest.raises(InputError, match=message):
        read_profile(ROCM, mapping)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ([("Direction", "Way")], "has the columns of no known profile"),
        ([("1008000,1011000", "1011000,1008000")], ":5: ends before it begins"),
        ([("1008000,1011000", "soon,1011000")], ":5: its time must be a number"),
        ([(",1008000,1011000", ",1011000")], ":5: has 7 values, the header 8"),
    ],
)
def test_faults_of_a_profile_are_named(tmp_path, changes, message):
    copies = changed(tmp_path, "rocprofv3_memory_copy_trace.csv", *changes)
    with pytest.raises(InputError, match=message):
        read_profile([ROCM[0], copies], DATA / "rocm.yaml")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("write peer=2 bytes=8", "the range has no address="),
        ("write peer=2 adress=flags bytes=8", "'adress=flags' is not KEY=VALUE.*did you mean 'address'"),
        ("write peer=two address=flags bytes=8", "peer: must be a whole number, got 'two'"),
        ("write peer=2 address=flags bytes=8q", "unknown unit 'q'"),
    ],
)
def test_faults_of_a_range_are_named(tmp_path, text, message):
    old = "write peer=2 address=flags+0x40 bytes=8 value=1"
    ranges = changed(tmp_path, "rocprofv3_marker_api_trace.csv", (old, text))
    with pytest.raises(InputError, match=message):
        read_profile([ROCM[0], ranges], DATA / "rocm.yaml")


def test_devices_are_known_by_their_number():
    texts = ("Agent 2", "2", "GPU 2", "NVIDIA A100-SXM4-80GB (2)", "H100")
    assert [device_of(text) for text in texts] == ["2", "2", "2", "2", "H100"]


def test_calls_of_the_hip_api_are_no_ranges(tmp_path):
    path = tmp_path / "hip_api_trace.csv"
    path.write_text(
        '"Domain","Function","Process_Id","Thread_Id","Correlation_Id","Start_Timestamp","End_Timestamp"\n'
        '"HIP_RUNTIME_API","hipMemcpy",238,238,4,10,20\n'
    )
    assert read_rows(path) == ("rocprofv3 marker_api_trace", [])


@pytest.mark.parametrize(
    ("pattern", "name", "answer"),
    [("a*c", "abc", True), ("a*c", "ac", True), ("ab*bc", "abc", False), ("*", "", True), ("a", "ab", False),
     ("*b*", "abc", True), ("a*b*c", "acb", False), ("[CUDA*", "[CUDA memcpy]", True), ("*a", "aba", True)],
)  # fmt: skip
def test_a_star_stands_for_any_text(pattern, name, answer):
    assert matches(pattern, name) is answer
