"""Does memory at each step match a slow list of tensor lifetimes (created, kept for backward, last used)?

Random small workloads have views, masks that only backward operators list, empty tensors, buffers and optimizer
temporaries. Hand-written pipelines cover gradients that arrive from the next stage.
"""

from __future__ import annotations

import random
from collections import Counter
from types import SimpleNamespace

import numpy as np
import pytest
from synthetic import MS, Chain, Proportional

from trine.folding.shown_ranks import one_of_each_class
from trine.graph.memory import MEMORY_CATEGORIES
from trine.graph.program import Compute, RankProgram
from trine.graph.workload import Operator, Parameter, Tensor, Workload
from trine.parallel.build import build_job
from trine.parallel.plan import Plan

BATCH = 8
#: A forward operator that keeps its inputs until its backward operator has run, and one that does not.
KEEPS, PASSES = "aten::linear", "aten::relu"


class Random:
    """Random chain of operators; each may also view, mask, read a buffer, or write an empty tensor."""

    def __init__(self, seed: int) -> None:
        self.draw = random.Random(seed)
        self.tensors: dict[int, Tensor] = {}
        self.operators: list[Operator] = []
        self.parameters: list[Parameter] = []
        current, forward = self.tensor("input", BATCH), []
        for _ in range(5):
            current = self.layer(current, forward)
        upstream = self.tensor("activation", BATCH)
        self.operator(PASSES, "forward", [current], [upstream])
        for op, weight, masks in reversed(forward):
            down, gradient = (
                self.tensor("activation", BATCH),
                self.tensor("gradient", size=self.tensors[weight].size_bytes),
            )
            number = self.operator(
                "aten::backward", "backward", [upstream, weight, *masks], [down, gradient], forward_id=op.id
            )
            self.parameters.append(
                Parameter(
                    weight=weight,
                    size_bytes=self.tensors[weight].size_bytes,
                    gradient=gradient,
                    gradient_operator=number,
                )
            )
            upstream = down
        self.tensor("buffer", size=4096)  # no operator reads it
        self.state = [self.tensor("optimizer_state", size=100 * i) for i in (1, 2)]
        self.temporary = self.tensor("activation", size=640)
        weights = [parameter.weight for parameter in self.parameters]
        self.operator("aten::_foreach_add_", "optimizer", [*weights, *self.state], [self.temporary])
        self.operator("aten::_foreach_add_", "optimizer", [self.temporary, *weights], [])

    def tensor(self, role: str, rows: int = 0, *, size: int | None = None, like: int | None = None) -> int:
        number = len(self.tensors) + 1
        size = 4 * rows * self.draw.randrange(1, 50) if size is None else size
        shape, dims = ((rows, size // 4 // rows), (0,)) if rows else ((size // 4,), ())
        storage = self.tensors[like].storage if like else number
        self.tensors[number] = Tensor(
            id=number, shape=shape, dtype="float32", size_bytes=size, storage=storage, role=role, batch_dims=dims
        )
        return number

    def layer(self, current: int, forward: list[tuple[Operator, int, list[int]]]) -> int:
        weight, out = self.tensor("weight", size=4 * self.draw.randrange(1, 500)), self.tensor("activation", BATCH)
        outputs, inputs = [out], [current, weight]
        if self.draw.random() < 0.5:  # a view of the input or of the output
            outputs.append(self.tensor("activation", BATCH, like=self.draw.choice([current, out])))
        if self.draw.random() < 0.5:
            outputs.insert(0, self.tensor("activation", size=0))
        if self.draw.random() < 0.5:
            inputs.append(self.tensor("buffer", size=64))
        masks = [self.tensor("activation", BATCH)] if self.draw.random() < 0.5 else []
        self.operator(self.draw.choice([KEEPS, PASSES]), "forward", inputs, outputs)
        forward.append((self.operators[-1], weight, masks))
        return out

    def operator(
        self, name: str, phase: str, inputs: list[int], outputs: list[int], forward_id: int | None = None
    ) -> int:
        number = len(self.operators) + 1
        self.operators.append(
            Operator(
                id=number, name=name, phase=phase, inputs=tuple(inputs), outputs=tuple(outputs), gpu_time_ps=MS,
                layer=f"l{number}", forward_id=forward_id,
            )
        )  # fmt: skip
        return number

    def workload(self) -> Workload:
        return Workload(
            name="random", source="by hand", format="by hand", gpu=None, batch=BATCH, operators=tuple(self.operators),
            tensors=self.tensors, parameters=tuple(self.parameters),
        )  # fmt: skip


def held(program: RankProgram) -> list[Counter[str]]:
    """Return the bytes of each category while each operator runs, without those resident between steps."""
    found = []
    for i, step in enumerate(program.steps):
        if isinstance(step, Compute):
            changes = [c for c in program.memory if c.step < i or (c.step == i and not c.at_end)]
            totals: Counter[str] = Counter()
            for change in changes:
                totals[MEMORY_CATEGORIES[change.category]] += change.delta_bytes
            found.append(+totals)
    return found


def lifetimes(made: Random, rows: list[int]) -> list[Counter[str]]:
    """Return the same from the definition: a storage lives from its creation to its last read, write or need."""
    tensors, found = made.tensors, []
    passes = [op for op in made.operators if op.phase != "optimizer"]
    by_id = {op.id: op for op in passes}
    needs = {op.id: list(op.inputs) + list(op.outputs) for op in passes}
    begins: dict[int, tuple[int, int, str]] = {}  # storage -> operator, tensor that gives the size, category
    for op in passes:
        later = [b for b in passes if b.forward_id == op.id]
        named = {t for other in passes if other.phase == "forward" for t in (*other.inputs, *other.outputs)}
        every = {t for other in passes for t in other.outputs}
        masks = [t for b in later for t in b.inputs if tensors[t].role == "activation" and t not in named | every]
        needs[op.id] += masks
        if op.phase == "backward" and by_id[op.forward_id].name == KEEPS:
            needs[op.id] += by_id[op.forward_id].inputs
        read = {tensors[t].storage for t in op.inputs}
        for t in (*op.inputs, *op.outputs, *masks):
            tensor = tensors[t]
            new = tensor.storage not in begins and tensor.size_bytes
            if new and tensor.role == "input":
                begins[tensor.storage] = (op.id, t, "inputs")
            elif new and tensor.role == "activation" and t not in op.inputs and tensor.storage not in read:
                begins[tensor.storage] = (op.id, t, "activations")
    gradients: Counter[str] = Counter()
    seen: set[int] = set()
    for part in rows:
        for op in passes:
            for parameter in made.parameters:
                if parameter.gradient_operator == op.id and parameter.weight not in seen:
                    seen.add(parameter.weight)
                    gradients["gradients"] += parameter.size_bytes
            now = Counter(gradients)
            for storage, (first, t, category) in begins.items():
                last = max(i for i, used in needs.items() if storage in {tensors[x].storage for x in used})
                if first <= op.id <= last:
                    now[category] += tensors[t].size_bytes * part // BATCH
            found.append(+now)
    temporary = Counter({"activations": made.tensors[made.temporary].size_bytes})
    return [*found, *[gradients + temporary] * 2]


@pytest.mark.parametrize("micro_batch", [8, 4, 2])
@pytest.mark.parametrize("seed", range(12))
def test_every_byte_lives_as_long_as_it_is_needed(seed: int, micro_batch: int) -> None:
    made = Random(seed)
    workload = made.workload()
    job, _ = build_job(workload, Plan(micro_batch=micro_batch).filled(), Proportional(workload))
    assert held(job.programs[0]) == lifetimes(made, [micro_batch] * (BATCH // micro_batch))
    stays = dict(zip(MEMORY_CATEGORIES, job.programs[0].resident_bytes, strict=True))
    read = {t for op in made.operators for t in op.inputs}
    lasting = [t for i, t in made.tensors.items() if i in read]
    assert stays["weights"] == sum(t.size_bytes for t in lasting if t.role in ("weight", "buffer"))
    assert stays["optimizer_state"] == 300
    assert stays["gradients"] == stays["activations"] == stays["inputs"] == 0


def pipeline(chain: Chain) -> RankProgram:
    workload = chain.workload()
    job, _ = build_job(workload, Plan(pp=2, cuts=("linear.3",)).filled(), Proportional(workload))
    return job.programs[0]


def test_a_gradient_that_arrives_is_let_go_when_it_was_read() -> None:
    """Stage 0 keeps layer 1's output and sends layer 2's; backward 2 reads the gradient from stage 1."""
    one = 4 * 8 * 64
    activations = [now["activations"] // one for now in held(pipeline(Chain([MS] * 4, [MS] * 4)))]
    assert activations == [1, 2, 3, 2]


def test_a_gradient_that_the_trace_does_not_list_stays_until_the_pass_ends() -> None:
    chain = Chain([MS] * 4, [MS] * 4)
    chain.operators = [
        Operator(**{**op_fields(op), "inputs": op.inputs[1:]}) if op.phase == "backward" else op
        for op in chain.operators
    ]
    one = 4 * 8 * 64
    # Third: arrived gradient, kept output of layer 1, unread gradient of backward 2. Last: arrived and backward 1's.
    assert [now["activations"] // one for now in held(pipeline(chain))] == [1, 2, 3, 2]


def op_fields(op: Operator) -> dict[str, object]:
    return {name: getattr(op, name) for name in Operator.__dataclass_fields__}


def test_tensor_parallel_ranks_keep_whole_inputs_and_their_share_of_outputs() -> None:
    workload = Chain([MS] * 2, [MS] * 2).workload()
    job, _ = build_job(workload, Plan(tp=2, tp_style="megatron").filled(), Proportional(workload))
    one = 4 * 8 * 64
    assert held(job.programs[0])[0] == Counter({"inputs": one, "activations": one // 2})


def test_one_rank_of_each_class_is_looked_at_in_whichever_stage_it_ends() -> None:
    """Each stage numbers its classes separately: class 0 of the first stage is not class 0 of the second."""

    def stage(*class_of: int) -> SimpleNamespace:
        partition = SimpleNamespace(class_of=np.array(class_of), num_classes=max(class_of) + 1)
        return SimpleNamespace(partition=partition)

    first = stage(0, 0, 1, 1, 2, 2, 0, 1, 2, 0)
    second = stage(-1, 0, 1, 2, 3, -1, -1, -1, -1, -1)
    third = stage(-1, -1, -1, 0, -1, 0, -1, -1, -1, -1)
    # in the second stage, ranks 1 to 4 each form a class; in the third, ranks 3 and 5 form one
    for stages, expected in (
        ([first, second], [0, 1, 2, 3, 4, 5, 7]),
        ([first, second, third], [0, 1, 2, 3, 4, 7, 8]),
    ):
        run = SimpleNamespace(stages=stages)
        assert one_of_each_class(run, np.arange(10)).tolist() == expected  # type: ignore[arg-type]


def stages(workload: Workload) -> list[RankProgram]:
    job, _ = build_job(workload, Plan(pp=2, cuts=("linear.3",)).filled(), Proportional(workload))
    return list(job.programs)


def test_the_gradient_of_a_shared_weight_is_made_by_the_stage_s_own_reader() -> None:
    """Layers 1 and 4 share a weight of 1000 bytes: stage 1 makes its gradient in backward 4, layer 3's in 3."""
    chain = Chain([MS] * 4, [MS] * 4, [1000, 1200, 1400, 1000])
    first, last = chain.parameters[0].weight, chain.parameters[3].weight
    chain.operators = [
        Operator(**{**op_fields(op), "inputs": tuple(first if t == last else t for t in op.inputs)})
        for op in chain.operators
    ]
    chain.parameters = chain.parameters[:3]
    one, two = stages(chain.workload())
    assert [now["gradients"] for now in held(one)] == [0, 0, 1200, 2200]
    assert [now["gradients"] for now in held(two)] == [0, 0, 1000, 2400]
    assert [program.resident_bytes[0] for program in (one, two)] == [2200, 2400]


def test_a_weight_that_no_forward_operator_names_lies_with_its_gradient() -> None:
    chain = Chain([MS] * 4, [MS] * 4, [1000, 1200, 1400, 1600])
    lost = chain.parameters[2].weight
    chain.operators = [
        Operator(**{**op_fields(op), "inputs": tuple(t for t in op.inputs if t != lost)})
        if op.phase == "forward"
        else op
        for op in chain.operators
    ]
    assert [program.resident_bytes[0] for program in stages(chain.workload())] == [2200, 3000]
    unknown = [
        Parameter(weight=p.weight, size_bytes=p.size_bytes, gradient=None, gradient_operator=None)
        for p in chain.parameters
    ]
    chain.parameters = (*unknown,)
    assert [program.resident_bytes[0] for program in stages(chain.workload())] == [3600, 1600]
