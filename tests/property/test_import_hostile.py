"""Do damaged files end in one of trine's errors, quickly, and never in another exception?"""

import random
from pathlib import Path

import pytest

from trine.errors import TrineError
from trine.formats.clusters import read_any

DATA = Path(__file__).parents[1] / "data"
FILES = (
    "infragraph/device_dgx1.yaml",
    "infragraph/composed_dgx_a100_cx5_qsfp.json",
    "infragraph/handwritten_2node_rail_bw_latency.yaml",
    "topologies/h100-8.smi.txt",
    "topologies/h100-2.nccl.xml",
    "topologies/v100-3.nccl.xml",
    "topologies/a100-2.lstopo.xml",
)
CSV = """source,target,bandwidth,latency,class,medium,duplex
gpu0,sw0,50 GB/s,1 us,scale-up,,true
gpu1,sw0,1 GB/s,1 ns,,,no
"""
PARTS = (
    "0",
    "-1",
    "99999999999999999999",
    "1e999",
    "nan",
    "",
    "[",
    "]",
    ":",
    '"',
    "<",
    ">",
    "&a;",
    "\x00",
    "é",
    "xpu",
    "true",
    "null",
    "[0:0:0]",
)


def damaged(text, rng):
    for _ in range(rng.randint(1, 3)):
        at = rng.randrange(len(text))
        kind = rng.randrange(4)
        if kind == 0:
            text = text[:at] + rng.choice(PARTS) + text[at:]
        elif kind == 1:
            text = text[:at] + text[at + rng.randint(1, 20) :]
        elif kind == 2:
            text = text[:at] + rng.choice(PARTS) + text[at + rng.randint(1, 6) :]
        else:
            other = rng.randrange(len(text))
            text = text[:at] + text[other : other + rng.randint(1, 40)] + text[at:]
    return text


@pytest.mark.parametrize("file", [*FILES, "csv"])
def test_damaged_files(tmp_path, file):
    text = CSV if file == "csv" else (DATA / file).read_text()
    rng = random.Random(file)
    path = tmp_path / "file"
    read = 0
    for number in range(150):
        path.write_text(damaged(text, rng), encoding="utf-8")
        try:
            options = {"links_from": "catalogue"} if number % 2 else {"gpu": "h100-sxm"}
            read += len(read_any(path, **options).devices) > 0
        except TrineError:
            continue
    assert read < 150
