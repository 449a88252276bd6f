"""Offload to host memory: the data that leaves the GPU, its copies to the host, and its return.

``optimizer``: after ZeRO-Offload (Ren et al., USENIX ATC 2021, section 4). Gradients go to the host bucket by bucket
during the backward pass. Once all have arrived, the CPU updates the weights bucket by bucket; each bucket is copied
back while the CPU works on the next. The next forward pass waits for all of them.

``activations``: activations that a layer's backward pass needs are copied out after its forward pass, and fetched
during the backward pass of the layer after it.
"""

from __future__ import annotations

from fractions import Fraction
from functools import cached_property
from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np

from trine.common.units import PS_PER_S
from trine.errors import PlanError
from trine.graph.memory import MEMORY_CATEGORIES
from trine.graph.program import HOST_STREAM, Compute, HostCopy, Label, MemoryChange, Phase, RankProgram
from trine.graph.workload import BACKWARD, Operator
from trine.parallel.chunks import Chunk, Place
from trine.parallel.data import Bucket, BucketReductions, fill_buckets, in_order, ready_gradients
from trine.parallel.extension import Extension, StageProgram
from trine.parallel.layer_places import layer_starts
from trine.parallel.program_parts import steps_as_written
from trine.parallel.sharded import ShardedReductions, shard_degrees

if TYPE_CHECKING:
    from trine.cluster.cluster import Cluster
    from trine.common.arrays import Int64
    from trine.parallel.job import JobContext
    from trine.parallel.memory import StageMemory

_ACTIVATIONS = MEMORY_CATEGORIES.index("activations")
_STATE = MEMORY_CATEGORIES.index("optimizer_state")


def host_bytes_per_s(cluster: Cluster, gpus: np.typing.NDArray[np.int64]) -> float:
    """Return the host memory bandwidth of each of ``gpus`` (devices, int64): an even share of its host's.

    Raises PlanError if a GPU has no host memory, or no link to it.
    """
    hosts = cluster.hosts_of(gpus)
    if (hosts < 0).any():
        name = cluster.device_name(int(gpus[np.argmax(hosts < 0)]))
        raise PlanError(f"device {name!r} has no host memory to copy from or to, which offload needs")
    present, first, counts = np.unique(hosts, return_index=True, return_counts=True)
    ptr, links = cluster.routes(present, gpus[first])
    if (np.diff(ptr) == 0).any():
        raise PlanError("offload needs links between the GPUs and host memory")
    return float((cluster.link_bytes_per_s[links[ptr[:-1]]] / counts).min())


def check_hosts(machine: Cluster | None, places: Int64) -> None:
    """Raise PlanError if a host of the GPUs at ``places`` has no memory figure."""
    if machine is None:
        return
    hosts = machine.hosts_of(np.asarray(machine.gpus, np.int64)[places])
    if (hosts < 0).any():
        return  # build_job names the missing host
    kinds = machine.device_table.kinds
    for host in np.unique(hosts).tolist():
        if kinds[int(machine.device_table.kind[host])].memory_bytes is None:
            raise PlanError(
                f"offload needs the capacity of host memory, and host {machine.device_name(host)!r} of cluster "
                f"{machine.name!r} has none: give it 'memory: SIZE', 1 GiB to 1 PiB, in the cluster file",
                field="offload",
            )


def check_offload(context: JobContext, has_host: bool) -> None:
    """Raise PlanError if there is nothing to offload, or no host memory for it."""
    target, workload = context.plan.offload, context.workload
    if not has_host:
        raise PlanError(f"offload of the {target} needs host memory, and the cluster describes no host")
    if not workload.is_training:
        raise PlanError(f"offload of the {target} is about training, and the trace has no backward pass")
    if target == "optimizer" and not context.total_trained_bytes:
        raise PlanError("offload of the optimizer needs weights with gradients, and the trace names none")


def require_copies(plan_offload: str, programs: tuple[RankProgram, ...]) -> None:
    """Raise PlanError if the plan offloads but no program copies anything to a host."""
    steps = (step for program in programs for step in steps_as_written(program.steps))
    copied = any(isinstance(step, HostCopy) and step.to_host for step in steps)
    if plan_offload != "none" and not copied:
        raise PlanError(f"offload of the {plan_offload} finds nothing to copy to the host")


def host_peak_bytes(program: RankProgram) -> int:
    """Return the most bytes that a rank holds in host memory: states, and copies that have not returned yet."""
    held = peak = 0
    for step in steps_as_written(program.steps):
        if isinstance(step, HostCopy) and step.label.phase == Phase.OFFLOAD:
            held += step.size_bytes if step.to_host else -step.size_bytes
            peak = max(peak, held)
    return program.host_bytes + peak


class GradientsToHost(Extension):
    """The copies of gradient buckets to the host: each is copied once complete and reduced, and freed on the GPU.

    Called after all other extensions, so that a bucket's reduction is already written. buckets: the reduced buckets,
    and DDP's buckets for gradients that no replicas share (all of them without replicas).
    """

    def __init__(self, program: StageProgram) -> None:
        super().__init__(program)
        self.copies: list[int] = []

    def forgets(self) -> bool:
        return not self.copies and not (self.reductions is not None and self.reductions.reduced)

    @cached_property
    def reductions(self) -> BucketReductions | None:
        """The extension that reduces gradients over replicas, if any."""
        return next((ext for ext in self.program.extensions if isinstance(ext, BucketReductions)), None)

    @cached_property
    def _unreduced(self) -> tuple[Bucket, ...]:
        """Buckets of gradients that are not reduced."""
        plan, reduced = self.context.plan, self.reductions.buckets if self.reductions is not None else ()
        weights = {weight for bucket in reduced for weight in bucket.weights}
        gradients = ready_gradients(self.program, [w for w in self.program.weights if w.weight not in weights])
        return in_order(self.program, fill_buckets(gradients, plan.first_bucket_bytes, plan.bucket_bytes))

    @cached_property
    def buckets(self) -> tuple[Bucket, ...]:
        reduced = self.reductions.buckets if self.reductions is not None else ()
        return in_order(self.program, (*reduced, *self._unreduced))

    def part_bytes(self, bucket: Bucket) -> int:
        """Return the bytes of a bucket's weights that this rank updates: fewer if replicas share the optimizer."""
        is_shared = isinstance(self.reductions, ShardedReductions) and bucket not in self._unreduced
        degree = shard_degrees(self.program)[bucket.is_expert] if is_shared else 1
        return -(-bucket.size_bytes // degree)

    def after(self, op: Operator, done: int, batch: int, place: Place) -> None:
        if place.phase != Phase.BACKWARD or not place.is_last:
            return
        self._copy_reduced(place.step)
        for bucket in self._unreduced:
            if bucket.ready_after == op.id:
                self._copy(bucket, self.writer.last_compute(), place.step)

    def end_pass(self, place: Place) -> None:
        self._copy_reduced(place.step)

    def before_optimizer(self, step: int) -> None:
        self._copy_reduced(step)

    def _copy_reduced(self, step: int) -> None:
        if self.reductions is not None:
            for bucket, done in self.reductions.reduced:
                self._copy(bucket, (done,), step)
            self.reductions.reduced.clear()

    def _copy(self, bucket: Bucket, done: tuple[int, ...], step: int) -> None:
        label = Label(phase=Phase.OFFLOAD, stage=self.program.stage, step=step)
        after = (*done, *self.copies[-1:])
        self.copies.append(self.writer.add(HostCopy(self.part_bytes(bucket), after, label, to_host=True)))
        self.program.memory.gradients_left(bucket.weights, self.copies[-1])

    def optimizer_share(self, share: Fraction) -> Fraction:
        """Return 0: the GPU does no part of the optimizer step."""
        return Fraction(0)


class HostOptimizer(Extension):
    """The optimizer step on the CPU, and the copies of its weights back. Called before all other extensions.

    The CPU reads each gradient once, and reads and writes each weight and each byte of optimizer state once, at its
    share of the host memory's bandwidth.
    """

    def forgets(self) -> bool:
        return True

    def after_optimizer(self, step: int) -> None:
        program, writer = self.program, self.writer
        gradients = next(extension for extension in program.extensions if isinstance(extension, GradientsToHost))
        sizes = [gradients.part_bytes(bucket) for bucket in gradients.buckets]
        state = self._state_bytes() if sizes else 0
        after = (*gradients.copies, *writer.last_compute_and_waits())
        copies: tuple[int, ...] = ()
        for size in sizes:
            traffic = 3 * size + 2 * state * size // sum(sizes)
            label = Label(phase=Phase.OPTIMIZER, stage=program.stage, step=step)
            updated = writer.add(Compute(HOST_STREAM, self._time_ps(traffic), after, label))
            copies = (writer.add(HostCopy(size, (updated, *copies), label._replace(phase=Phase.OFFLOAD))),)
        for copy in copies:  # copies end in order
            writer.wait(copy)
        gradients.copies.clear()

    def host_bytes(self) -> int:
        """Return the bytes of the optimizer state."""
        return self._state_bytes()

    def resident(self, sizes: dict[str, int]) -> None:
        """Remove the optimizer state from GPU memory; it stays on the host."""
        sizes["optimizer_state"] = 0

    def _state_bytes(self) -> int:
        """Return the bytes of optimizer state that this rank would hold."""
        changes = [extension.resident for extension in self.program.extensions if extension is not self]
        program = self.program
        return program.memory.resident(program.weights, program.optimizer, False, changes)[_STATE]

    def _time_ps(self, num_bytes: int) -> int:
        rate = self.context.host_bytes_per_s
        assert rate is not None  # build_job refuses offload without a host
        return -int(-num_bytes * PS_PER_S // rate)


class ActivationOffload(Extension):
    """The copies of each unit's activations: to the host after its forward pass, and back before its backward pass.

    The operator after a unit waits for the previous unit's copy, so at most two fill memory. A unit is a layer with a
    number in its name (``layers.17``), or every layer if no name has one. Activations that later forward operators
    still read leave with the last unit that reads them. The last unit of the model stays, because its backward pass
    follows immediately.
    """

    def __init__(self, program: StageProgram) -> None:
        super().__init__(program)
        self.memory: StageMemory = program.memory
        self._units = {number: _Units(self.context, chunk) for number, chunk in enumerate(self.context.chunks)}
        self._offloaded: dict[tuple[int, int, int], tuple[int, int]] = {}  # micro-batch, chunk, unit -> copy, bytes
        self._storages: dict[int, set[int]] = {}  # micro-batch -> storages on the host
        self._fetches: dict[tuple[int, int, int], int] = {}
        self._last_out: tuple[int, ...] = ()
        self._last_in: tuple[int, ...] = ()

    def begin_step(self, step: int) -> None:
        self._offloaded.clear()
        self._fetches.clear()
        self._storages.clear()

    def begin_pass(self, place: Place) -> None:
        if place.phase == Phase.BACKWARD:
            self._fetch_next(place, len(self._units[place.chunk].ends))

    def before(self, op: Operator, place: Place) -> None:
        """Make the operator wait for its unit's activations, and start to fetch the next unit's."""
        if place.phase != Phase.BACKWARD:
            return
        unit = self._units[place.chunk].unit_of(op)
        key = (place.microbatch, place.chunk, unit)
        if key in self._offloaded and self._offloaded[key][1]:
            self._fetch(key, place)
            self.writer.wait(self._fetches[key])
            self._offloaded[key] = (self._offloaded[key][0], 0)  # already waited for
            self._fetch_next(place, unit)

    def after(self, op: Operator, done: int, batch: int, place: Place) -> None:
        if place.phase != Phase.FORWARD or place.rerun:
            return
        units = self._units[place.chunk]
        if op.id in units.ends:
            self._offload_unit((place.microbatch, place.chunk, units.unit_of(op)), op, done, place)

    def _offload_unit(self, key: tuple[int, int, int], op: Operator, done: int, place: Place) -> None:
        units = self._units[place.chunk]
        if units.stays(key[2]):
            return
        storages = self._storages.setdefault(place.microbatch, set())
        size = 0
        for storage, (num_bytes, category, *_) in self.memory.live(place.microbatch).items():
            if (
                category == _ACTIVATIONS
                and storage not in storages
                and units.last_use.get(storage, -1) <= units.place[op.id]
            ):
                storages.add(storage)
                size += num_bytes
        if size:
            for step in self._last_out:  # two units at a time, like Transformer Engine's double buffering
                self.writer.wait(step)
            copy = HostCopy(size, (done, *self._last_out), self._label(place), to_host=True)
            self._last_out = (self.writer.add(copy),)
            self._offloaded[key] = (self._last_out[0], size)
            self.writer.memory.append(MemoryChange(self._last_out[0], True, -size, _ACTIVATIONS))

    def _fetch_next(self, place: Place, unit: int) -> None:
        """Start to fetch the activations of the unit before ``unit`` (the next one of the backward pass)."""
        for earlier in reversed(range(unit)):
            if (place.microbatch, place.chunk, earlier) in self._offloaded:
                self._fetch((place.microbatch, place.chunk, earlier), place)
                return

    def _fetch(self, key: tuple[int, int, int], place: Place) -> None:
        if key not in self._fetches:
            step, size = self._offloaded[key]
            after = (step, *self.writer.last_compute(), *self._last_in)
            self._fetches[key] = self.writer.add(HostCopy(size, after, self._label(place)))
            self._last_in = (self._fetches[key],)
            self.writer.memory.append(MemoryChange(self._fetches[key], False, size, _ACTIVATIONS))

    def _label(self, place: Place) -> Label:
        return Label(phase=Phase.OFFLOAD, stage=self.program.stage, microbatch=place.microbatch, step=place.step)


class _Units:
    """The units of a chunk: their ends, their operators, and the last reader of each storage in the forward pass.

    ends: ids of the last operator of each. place: forward operator -> position. last_use: storage -> position.
    """

    def __init__(self, context: JobContext, chunk: Chunk) -> None:
        forward = chunk.forward
        starts = list(layer_starts(forward)) if forward else []
        if len(starts) < 2:
            starts = [i for i, op in enumerate(forward) if not i or op.layer != forward[i - 1].layer]
        bounds = list(pairwise([*starts, len(forward)]))
        self.ends = {forward[end - 1].id for _, end in bounds}
        self._unit = {op.id: unit for unit, (start, end) in enumerate(bounds) for op in forward[start:end]}
        self._is_last = chunk.number == len(context.stages.cuts)
        self.place = {op.id: i for i, op in enumerate(forward)}
        tensors = context.workload.tensors
        self.last_use = {
            tensors[t].storage: i for i, op in enumerate(forward) for t in (*op.inputs, *op.outputs)
        }  # fmt: skip

    def unit_of(self, op: Operator) -> int:
        """Return the unit of a forward operator, or of a backward operator's forward operator; -1: no unit."""
        forward = op.forward_id if op.phase == BACKWARD else op.id
        return self._unit.get(forward, -1) if forward is not None else -1

    def stays(self, unit: int) -> bool:
        """Return whether a unit stays on the GPU because its backward pass follows immediately."""
        return self._is_last and unit == len(self.ends) - 1
