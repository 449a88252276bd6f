"""Are traces that people write themselves in TrioSim's format read as they mean them?"""

from pathlib import Path

import pytest

import trine
from trine.cluster import build_topology

HEADER = "OperatorID,OperatorName,Operator_input,Operator_output,Operator_cudatimenooverlap,InputSize,OutputSize,stage"
BATCH, WIDTH = 128, 512
ADDMM = "autograd::engine::evaluate_function: AddmmBackward0"
MINE = "autograd::engine::evaluate_function: MyBackward"


class Csv:
    """Writes trace.csv and tensor.csv; only the columns that are needed."""

    def __init__(self) -> None:
        self.rows, self.tensors, self.count = [], {}, {}

    def tensor(self, shape: tuple[int, ...], kind: str) -> int:
        number = len(self.tensors) + 1
        self.tensors[number] = (shape, kind)
        return number

    def operator(self, name: str, phase: str, inputs: list[int], outputs: list[int], microseconds: str) -> None:
        def sizes(numbers: list[int]) -> str:
            return "; ".join(str(self._elements(n)) for n in numbers)

        lists = [f"[{'; '.join(map(str, numbers))}]" for numbers in (inputs, outputs)]
        cells = [
            str(len(self.rows) + 1),
            name,
            *lists,
            microseconds,
            f"[{sizes(inputs)}]",
            f"[{sizes(outputs)}]",
            phase,
        ]
        self.rows.append(",".join(cells))

    def _elements(self, number: int) -> int:
        count = 1
        for size in self.tensors[number][0]:
            count *= size
        return count

    def write(self, folder: Path) -> Path:
        (folder / "trace.csv").write_text("\n".join([HEADER, *self.rows]) + "\n")
        lines = ["Index,TensorID,TensorShape,TensorNumElement,TensorEachByte,TensorType,TensorStorgeid,gpuid"]
        for number, (shape, kind) in self.tensors.items():
            lines.append(f'{number},{number},"{list(shape)}",{self._elements(number)},4,{kind},{number + 1000},0')
        (folder / "tensor.csv").write_text("\n".join(lines) + "\n")
        return folder


def chain(layers: int, forward: str, backward: str, microseconds: tuple[str, str] = ("1000", "2000")) -> Csv:
    """Equal layers y = x W with a full backward pass, no optimizer."""
    csv = Csv()
    x = [csv.tensor((BATCH, WIDTH), "input")]
    weights = []
    for _ in range(layers):
        weights.append(csv.tensor((WIDTH, WIDTH), "weight"))
        x.append(csv.tensor((BATCH, WIDTH), "output"))
        csv.operator(forward, "forward", [x[-2], weights[-1]], [x[-1]], microseconds[0])
    upstream = csv.tensor((BATCH, WIDTH), "grad_output")
    for i in reversed(range(layers)):
        gx, gw = csv.tensor((BATCH, WIDTH), "output"), csv.tensor((WIDTH, WIDTH), "output")
        csv.operator(backward, "backward", [upstream, x[i], weights[i]], [gx, gw], microseconds[1])
        upstream = gx
    return csv


@pytest.mark.parametrize(
    ("forward", "backward"),
    [
        ("aten::linear", ADDMM),
        ("aten::mm", "autograd::engine::evaluate_function: MmBackward0"),
        ("my::op", MINE),
    ],
)
@pytest.mark.parametrize(("stages", "micro"), [(2, 4), (4, 4), (4, 8), (8, 32)])
def test_equal_stages_fill_and_drain(tmp_path, forward, backward, stages, micro):
    workload = trine.load(chain(8, forward, backward).write(tmp_path))
    assert len(workload.parameters) == 8
    assert [op.forward_id for op in workload.operators[8:]] == list(range(8, 0, -1))
    total = 8 * 3 * 10**9
    cluster = build_topology("full", "100000 TB/s", 0, stages)
    plan = trine.Plan(pp=stages, micro_batch=BATCH // micro)
    end = trine.simulate(workload, plan, cluster=cluster).step_time_ps
    assert end == pytest.approx((micro + stages - 1) * total / (micro * stages), rel=0.02)


def test_decimal_microseconds_are_exact(tmp_path):
    workload = trine.load(chain(1, "aten::linear", ADDMM, ("2671.0", "5.5000001")).write(tmp_path))
    assert [op.gpu_time_ps for op in workload.operators] == [2_671_000_000, 5_500_001]


def test_backward_rows_may_come_before_forward_rows(tmp_path):
    csv = chain(2, "aten::linear", ADDMM)
    csv.rows = [csv.rows[i] for i in (2, 0, 3, 1)]
    workload = trine.load(csv.write(tmp_path))
    assert [op.layer for op in workload.operators] == ["linear.2", "linear.1", "linear.1", "linear.2"]
    assert trine.simulate(workload).step_time_ps == 6 * 10**9


def test_weights_of_unknown_operators_do_not_scale_with_the_batch(tmp_path):
    workload = trine.load(chain(2, "my::op", MINE).write(tmp_path))
    assert [workload.tensors[p.weight].batch_dims for p in workload.parameters] == [(), ()]
    assert {t.role for t in workload.tensors.values() if t.shape == (BATCH, WIDTH)} == {"input", "activation"}


def test_a_constant_is_no_buffer():
    workload = trine.load("resnet50-h100-b128")
    buffers = {t.storage: t.size_bytes for t in workload.tensors.values() if t.role == "buffer"}
    assert sum(buffers.values()) == 53 * 8 + 2 * 4 * 26_560
