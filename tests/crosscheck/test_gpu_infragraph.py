"""Do loads and stores take the same time on a machine from InfraGraph as on trine's preset of the same machine?"""

from pathlib import Path

import pytest

from trine.cluster import build_topology
from trine.formats.clusters import read_any
from trine.gpu.kernels.build import build_kernel
from trine.gpu.model.files import load_gpu_model
from trine.gpu.run import run_gpus

FILE = """
name: four
devices:
- name: box
  components:
  - {name: xpu, choice: xpu, count: 4}
  - {name: nvsw, choice: switch, count: 1}
  links:
  - name: wire
    physical:
      bandwidth: {choice: gigabytes_per_second, gigabytes_per_second: 80}
      latency: {choice: ns, ns: 300}
  edges:
  - {ep1: {component: xpu}, ep2: {component: nvsw}, scheme: many2many, link: wire}
instances:
- {name: box, device: box, count: 1}
"""


@pytest.mark.parametrize(
    ("op", "algorithm"), [("all_gather", "put"), ("reduce_scatter", "get"), ("all_reduce", "ring")]
)
def test_a_box_with_a_switch(tmp_path: Path, op: str, algorithm: str) -> None:
    path = tmp_path / "four.yaml"
    path.write_text(FILE)
    imported, own = read_any(path), build_topology("switch", "80 GB/s", "300 ns", 4)
    assert {(link.bytes_per_s, link.latency_ps) for link in imported.links} == {(80 * 10**9, 300_000)}
    program, model = build_kernel(op, 4, 64 << 10, algorithm=algorithm, workgroups=4), load_gpu_model("astra3-generic")
    ends = [run_gpus(program, cluster, cluster.gpus, model).end_ps for cluster in (imported, own)]
    assert ends[0] == ends[1] > 4 * 300_000
