"""Plans carry their own protocol's bytes and costs, and MSCCL++ plans may read from other GPUs (``get``)."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from trine.cli.main import app
from trine.errors import SpecError
from trine.gpu.plans import check_plan, load_plan

XML = """
<algo name="exchange" proto="{proto}" nchannels="1" nchunksperloop="2" ngpus="2" coll="allgather" inplace="1"
 outofplace="0" minBytes="0" maxBytes="1073741824">
{gpus}
</algo>
"""
GPU = """
  <gpu id="{me}" i_chunks="1" o_chunks="2" s_chunks="0">
    <tb id="0" send="{peer}" recv="-1" chan="0">
      <step s="0" type="s" srcbuf="o" srcoff="{me}" dstbuf="o" dstoff="{me}" cnt="1" depid="-1" deps="-1" hasdep="0"/>
    </tb>
    <tb id="1" send="-1" recv="{peer}" chan="0">
      <step s="0" type="r" srcbuf="o" srcoff="{peer}" dstbuf="o" dstoff="{peer}" cnt="1" depid="-1" deps="-1"
       hasdep="0"/>
    </tb>
  </gpu>
"""
SIZE = 8192


def xml_plan(folder: Path, proto: str) -> Path:
    path = folder / f"{proto.lower()}.xml"
    path.write_text(XML.format(proto=proto, gpus="".join(GPU.format(me=me, peer=1 - me) for me in (0, 1))))
    return path


def answer(*arguments: object) -> dict[str, Any]:
    command = [
        "collective",
        "all_gather",
        "--cluster",
        "dgx-h100",
        "--gpus",
        2,
        "--size",
        SIZE,
        *arguments,
        "--json",
        "-",
    ]
    result = CliRunner().invoke(app, [str(each) for each in command])
    assert result.exit_code == 0, result.output
    found: dict[str, Any] = json.loads(result.stdout)
    return found


def busiest(found: dict[str, Any]) -> int:
    return max(row["bytes"] for row in found["tiers"])


@pytest.mark.parametrize(("proto", "times"), [("Simple", 1), ("LL", 2), ("LL128", 16 / 15)])
def test_a_plan_has_the_bytes_and_the_costs_of_its_protocol(tmp_path: Path, proto: str, times: float) -> None:
    """Each GPU sends half of the buffer; LL sends 4 bytes of flag with 4 of data, LL128 8 with 120."""
    path = xml_plan(tmp_path, proto)
    found = answer("--algorithm", path)
    assert found["rows"][0]["protocol"] == proto.lower()
    assert busiest(found) == pytest.approx(SIZE / 2 * times, abs=1)
    demanded = answer("--algorithm", path, "--protocol", proto.lower())
    assert demanded["rows"] == found["rows"]
    assert demanded["tiers"] == found["tiers"]


def test_the_steps_of_ll_are_shorter(tmp_path: Path) -> None:
    times = [answer("--algorithm", xml_plan(tmp_path, proto))["rows"][0]["time_us"] for proto in ("LL", "Simple")]
    assert times[0] < times[1]


@pytest.mark.parametrize("protocol", ["simple", "ll128"])
def test_a_plan_with_flags_runs_with_no_other_protocol(tmp_path: Path, protocol: str) -> None:
    path = xml_plan(tmp_path, "LL")
    command = [
        "collective",
        "all_gather",
        "--cluster",
        "dgx-h100",
        "--gpus",
        "2",
        "--size",
        "8K",
        "--algorithm",
        str(path),
    ]
    result = CliRunner().invoke(app, [*command, "--protocol", protocol])
    assert result.exit_code == 2
    assert f"is '{protocol}', but the plan {path} is written for ll: leave --protocol out" in result.output


def test_bare_links_carry_the_flags_of_a_plan(tmp_path: Path) -> None:
    found = answer("--algorithm", xml_plan(tmp_path, "LL"), "--protocol", "none")
    assert busiest(found) == SIZE


def test_ll128_needs_links_that_write_128_bytes_at_once(tmp_path: Path) -> None:
    path = xml_plan(tmp_path, "LL128")
    command = ["collective", "all_gather", "--cluster", "a40-pcie", "--size", "8K", "--algorithm", str(path)]
    result = CliRunner().invoke(app, command)
    assert result.exit_code == 2
    assert "LL128 needs links that write 128 bytes at once" in result.output


# -- get over memory channels -----------------------------------------------------------------------------------------


def reads(me: int) -> dict[str, Any]:
    """A GPU that announces its chunk, waits for its peer's word, and reads the peer's chunk."""
    channel = {"channel_ids": [0], "channel_type": "memory"}
    here = {"type": "o", "index": 1 - me, "size": 1}
    get = {"name": "get", "src_buff": [{"buffer_id": 0, "index": 1 - me, "size": 1}], "dst_buff": [here], **channel}
    block = {
        "id": 0,
        "ops": [{"name": "signal", **channel}, {"name": "wait", **channel}, {"name": "nop"}, get],
        "channels": [channel],
        "remote_buffer_refs": [{"access_channel_type": "memory", "remote_buffer_ids": [0]}],
    }
    return {
        "id": me, "input_chunks": 1, "output_chunks": 2, "scratch_chunks": 0, "threadblocks": [block],
        "channels": [{"channel_type": "memory", "connected_to": [1 - me]}],
        "remote_buffers": [{"rank": 1 - me, "type": "o", "access_channel_types": ["memory"]}], "semaphores": [],
    }  # fmt: skip


def json_plan(folder: Path, **edits: Any) -> Path:
    plan = {
        "name": "read", "collective": "allgather", "protocol": "Simple", "inplace": True,
        "gpus": [reads(0), reads(1)], "num_threads_per_block": 1024, "use_double_scratch_buffer": False,
        "buffer_alignment": 16, "min_message_size": 0, "max_message_size": 2**40, **edits,
    }  # fmt: skip
    path = folder / "read.json"
    path.write_text(json.dumps(plan))
    return path


def test_get_over_memory_channels_runs(tmp_path: Path) -> None:
    """Half of the buffer crosses each link once, whoever asks for it."""
    path = json_plan(tmp_path)
    check_plan(load_plan(path))
    found = answer("--algorithm", path)
    assert found["rows"][0]["protocol"] == "simple"
    assert busiest(found) == SIZE / 2


def test_get_runs_load_by_load(tmp_path: Path) -> None:
    command = ["collective", "all_gather", "--cluster", "dgx-h100", "--gpus", "2", "--size", "8K"]
    result = CliRunner().invoke(app, [*command, "--algorithm", str(json_plan(tmp_path)), "--fidelity", "loadstore"])
    assert result.exit_code == 0, result.output


def test_channels_of_a_move_are_checked(tmp_path: Path) -> None:
    gpu = reads(0)
    gpu["threadblocks"][0]["ops"][3]["channel_ids"] = [1]
    with pytest.raises(SpecError, match="there is no memory channel 1 here"):
        load_plan(json_plan(tmp_path, gpus=[gpu, reads(1)]))


def test_a_local_buffer_may_name_its_own_rank_only(tmp_path: Path) -> None:
    for named in (0, 1):
        gpu = reads(0)
        gpu["threadblocks"][0]["ops"][3]["dst_buff"][0]["rank"] = named
        path = json_plan(tmp_path, gpus=[gpu, reads(1)])
        if named == 0:
            check_plan(load_plan(path))
        else:
            with pytest.raises(SpecError, match="a local buffer of GPU 0 names rank 1"):
                load_plan(path)
