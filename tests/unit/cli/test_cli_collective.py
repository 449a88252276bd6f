"""Does ``trine collective`` print nccl-tests' table, write the documented JSON, draw, and report errors in one line?"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner
from envelope import opened

from trine.cli.main import app
from trine.collectives.sizes import format_size, parse_size, parse_sizes
from trine.errors import UnitError

RUNNER = CliRunner()
ROW = ["size_bytes", "sent_bytes", "time_us", "algbw_GBps", "busbw_GBps", "algorithm", "protocol", "channels", "low_us",
       "high_us", "evidence", "limit"]  # fmt: skip
TOP = ["trine_version", "op", "cluster", "num_ranks", "num_nodes", "library", "library_version", "launch", "network",
       "rows", "links", "links_left_out", "tiers", "routing", "routing_reason", "notes",
       "cluster_evidence"]  # fmt: skip


def run(*args: str) -> tuple[int, str, str]:
    result = RUNNER.invoke(app, ["collective", *args])
    return result.exit_code, result.stdout, result.stderr


def answer(*args: str) -> dict[str, object]:
    code, out, err = run(*args, "--json", "-")
    assert code == 0, err
    data = opened(out, "collective", "collective")
    assert isinstance(data, dict)
    return data


def test_the_table_is_that_of_nccl_tests() -> None:
    code, out, _ = run("all_reduce", "--size", "1K:1G:x1024", "--cluster", "dgx-h100", "--details")
    lines = out.splitlines()
    assert code == 0
    assert lines[0].startswith("# all_reduce of 8 ranks on 1 node, dgx-h100; nccl ")
    assert lines[1].split() == [
        "#",
        "size",
        "time",
        "algbw",
        "busbw",
        "algorithm",
        "protocol",
        "chan",
        "low",
        "high",
        "evidence",
    ]
    assert lines[2].split() == ["#", "(B)", "(us)", "(GB/s)", "(GB/s)", "(us)", "(us)"]
    rows = [line.split() for line in lines[3:] if not line.startswith("#")]
    assert [row[0] for row in rows] == ["1024", "1048576", "1073741824"]
    for size, time, algbw, busbw, _, _, _, low, high, _ in rows:
        assert float(algbw) == pytest.approx(int(size) / float(time) / 1e3, abs=0.006, rel=1e-3)
        assert float(busbw) == pytest.approx(float(algbw) * 14 / 8, abs=0.02)
        assert float(low) < float(time) < float(high)
    assert any(line.startswith("# busiest link of each tier at 1G: ") for line in lines)


def test_the_screen_has_the_numbers_of_the_table() -> None:
    command = ("all_reduce", "--size", "1K:1G:x1024", "--cluster", "dgx-h100")
    code, out, _ = run(*command)
    assert code == 0
    lines = out.splitlines()
    assert lines[0].startswith("all_reduce of 8 ranks on 1 node, dgx-h100; nccl ")
    head = lines.index(next(line for line in lines if line.startswith("size (B)")))
    assert lines[head].split() == [
        "size", "(B)", "time", "(us)", "low", "high", "algbw", "busbw", "(GB/s)", "choice", "chan", "evidence",
    ]  # fmt: skip
    rows = [line.split() for line in lines[head + 1 : head + 4]]
    for row, (size, time, low, high, algbw, busbw, choice, channels, evidence) in zip(
        answer(*command)["rows"], rows, strict=True
    ):
        assert row["size_bytes"] == int(size)
        exact = [row[name] for name in ("time_us", "algbw_GBps", "busbw_GBps")]
        assert [float(time), float(algbw), float(busbw)] == pytest.approx(exact, rel=1e-4, abs=0.006)
        assert (choice, channels, evidence) == (
            f"{row['algorithm']}/{row['protocol']}", str(row["channels"]), row["evidence"]
        )  # fmt: skip
        assert float(low) < float(time) < float(high)
    assert any(line.startswith("link   ") and " of 1G (" in line for line in lines)


def test_json_has_the_documented_keys() -> None:
    data = answer("all_gather", "--size", "1000,1M", "--cluster", "dgx-h100")
    assert list(data) == TOP
    rows = data["rows"]
    assert isinstance(rows, list)
    assert [list(row) for row in rows] == [ROW, ROW]
    first = rows[0]
    assert (first["size_bytes"], first["sent_bytes"]) == (1000, 896)
    assert first["algbw_GBps"] == pytest.approx(896 / first["time_us"] / 1e3)
    assert first["busbw_GBps"] == pytest.approx(first["algbw_GBps"] * 7 / 8)
    assert first["evidence"] in ("measured", "interpolated", "modelled", "assumed")
    assert data["launch"] == "process-per-gpu"
    assert data["network"] is None
    assert data["links_left_out"] == 0
    assert len(data["links"]) == 16
    page = (Path(__file__).parents[3] / "docs" / "reference" / "collective-json.md").read_text()
    assert all(f"`{key}`" in page for key in TOP + ROW)


def test_json_of_an_explanation() -> None:
    data = answer("all_reduce", "--size", "1K,1G", "--cluster", "dgx-h100", "--explain")
    assert list(data) == [*TOP, "explain", "crossovers"]
    for row, why in zip(data["rows"], data["explain"], strict=True):
        assert sum(part["time_us"] for part in why["parts"]) == pytest.approx(row["time_us"])
        times = [other["time_us"] for other in why["alternatives"]]
        assert times == sorted(times)
        assert why["fastest"] == why["alternatives"][0]
        chosen = (row["algorithm"], row["protocol"])
        assert chosen in {(other["algorithm"], other["protocol"]) for other in why["alternatives"]}
    firsts = [each["from_bytes"] for each in data["crossovers"]]
    assert firsts[0] == 0
    assert firsts == sorted(firsts)


def test_explained_in_words() -> None:
    code, out, _ = run("all_reduce", "--size", "1K:1G", "--cluster", "dgx-h100", "--explain")
    assert code == 0
    for word in ("launch", "latency", "bandwidth", "14 steps", "would take: ", "nccl would choose:", "on the bus"):
        assert word in out
    assert "(15 other sizes are explained in the JSON)" in out


def test_the_json_alone_is_on_stdout_and_files_hold_it_too(tmp_path: Path) -> None:
    command = ("broadcast", "--size", "4K", "--cluster", "dgx-a100")
    code, out, err = run(*command, "--json", "-")
    assert code == 0
    assert json.loads(out)["op"] == "broadcast"
    assert "broadcast of 8 ranks on 1 node, dgx-a100" in err
    code, out, _ = run(*command, "--json", str(tmp_path / "a.json"))
    assert code == 0
    assert "broadcast of 8 ranks on 1 node, dgx-a100" in out
    assert opened((tmp_path / "a.json").read_text(), "collective", "collective") == answer(*command)


@pytest.mark.parametrize("kind", ["png", "svg"])
def test_plots(kind: str, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    file = tmp_path / f"a.{kind}"
    code, _, err = run("all_reduce", "--size", "1K:1G", "--cluster", "dgx-h100", "--plot", str(file))
    assert code == 0
    assert f"drawn in {file}" in err
    data = file.read_bytes()
    if kind == "png":
        assert data.startswith(b"\x89PNG")
        assert len(data) > 20_000
    else:
        assert b"bus bandwidth (GB/s)" in data or b"<svg" in data
    code, _, err = run(
        "all_reduce", "--size", "1K:1G", "--cluster", "dgx-h100", "--plot", str(tmp_path / "no" / "a.png")
    )
    assert code == 2
    assert "cannot write" in err


def test_a_machine_described_inline_says_what_it_lacks() -> None:
    code, out, err = run("all_reduce", "--size", "1M", "--topology", "ring", "--gpus", "4", "--bandwidth", "50 GB/s")
    assert code == 0
    assert "note: links have no latency" in err
    assert "links shared fair, step by step; launch none" in out


@pytest.mark.parametrize(
    ("args", "said"),
    [
        (("all_reduc", "--size", "1K", "--cluster", "dgx-h100"), "did you mean 'all_reduce'"),
        (("all_reduce", "--size", "1K", "--cluster", "dgx-h10"), "did you mean 'dgx-h100'"),
        (("all_reduce", "--size", "1K"), "--cluster"),
        (("all_reduce", "--cluster", "dgx-h100"), "--size is needed"),
        (("all_reduce", "--size", "1K", "--cluster", "no/such.yaml"), "no/such.yaml"),
        (("all_reduce", "--size", "1Q", "--cluster", "dgx-h100"), "'Q'"),
        (("all_reduce", "--size", "2K:1K", "--cluster", "dgx-h100"), "ends before"),
        (("all_reduce", "--size", "8E15", "--cluster", "dgx-h100"), "--size"),
        (("all_reduce", "--size", "2048T", "--cluster", "dgx-h100"), "size"),
        (("all_to_all_v", "--matrix", "no/such.csv", "--cluster", "dgx-h100"), "no/such.csv"),
    ],
)
def test_errors_are_one_line_and_exit_code_2(args: tuple[str, ...], said: str) -> None:
    code, out, err = run(*args)
    assert code == 2
    assert out == ""
    assert err.count("\n") == 1
    assert err.startswith("error: ")
    assert said in err


def test_barriers_need_no_size() -> None:
    rows = answer("barrier", "--cluster", "dgx-h100")["rows"]
    assert isinstance(rows, list)
    assert rows[0]["size_bytes"] == 0
    assert rows[0]["time_us"] > 0


# -- sizes -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "sizes"),
    [
        ("64M", [64 << 20]),
        ("1K,1M,1G", [1 << 10, 1 << 20, 1 << 30]),
        ("1g, 1k", [1 << 10, 1 << 30]),
        ("1K:8K", [1024, 2048, 4096, 8192]),
        ("1K:9K", [1024, 2048, 4096, 8192]),
        ("1K:1M:x32", [1024, 32768, 1 << 20]),
        ("16M:64M:16M", [m << 20 for m in (16, 32, 48, 64)]),
        ("0", [0]),
        ("12345", [12345]),
        ("64 MiB", [64 << 20]),
        ("64MB", [64_000_000]),
        ("1K:2K,2K:4K", [1024, 2048, 4096]),
    ],
)
def test_sizes(text: str, sizes: list[int]) -> None:
    assert parse_sizes(text) == sizes


@pytest.mark.parametrize("text", ["", ",", "1K:", ":1K", "1K:2K:3K:4K", "-1", "1K:2K:x1", "1K:2K:0", "0:1K", "x2",
                                  "1.5.2M", "1K:2K:xx", "1:1048576:1", "1K:1M:32", "nan", "1e400", "١K"])  # fmt: skip
def test_wrong_sizes(text: str) -> None:
    with pytest.raises(UnitError):
        parse_sizes(text)


@pytest.mark.parametrize("size", [0, 1, 1023, 1 << 10, 3 << 20, 1 << 30, (1 << 30) + 1])
def test_sizes_are_written_as_they_are_read(size: int) -> None:
    assert parse_size(format_size(size)) == size


# -- imports ---------------------------------------------------------------------------------------------------------


def test_the_library_model_needs_neither_numba_nor_matplotlib() -> None:
    code = (
        "import sys\nfrom trine.cli.main import app\n"
        "try:\n app(['collective', 'all_reduce', '--size', '1K:1G', '--cluster', 'dgx-h100'])\n"
        "except SystemExit: pass\n"
        "print([m for m in ('numba', 'matplotlib', 'torch', 'pandas', 'scipy') if m in sys.modules], file=sys.stderr)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stderr.strip() == "[]"
    assert "all_reduce of 8 ranks" in done.stdout
