"""The parallel layout of a job: how many ways, on which axes, in which order, and the rank grid that follows."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from trine.errors import PlanError, nearest
from trine.parallel.schedules import SCHEDULES

MIB = 2**20
#: Larger batches are taken for a mistake; they would not fit any GPU.
MAX_BATCH = 10**9
DATA_MODES = ("ddp", "dp")
TP_STYLES = ("column", "megatron")
INPUT_COPIES = ("step", "prefetch", "none")


@dataclass(frozen=True, kw_only=True, slots=True)
class Plan:
    """How one job is spread over ``dp * tp * pp`` ranks.

    dp, tp, pp: ways of data, tensor and pipeline parallelism.
    data: ``"ddp"`` (DistributedDataParallel) or ``"dp"`` (DataParallel: one process, scatter, replicate, gather).
    batch: samples of one data-parallel replica in a step; None takes the trace's.
    micro_batch: samples of one micro-batch; None takes the whole batch. The last micro-batches of an uneven batch are
        smaller by one sample, so that sizes differ by at most one.
    schedule: order of micro-batches in the pipeline, ``"gpipe"``, ``"1f1b"`` or one that a plug-in registered.
    first_bucket_bytes, bucket_bytes: a DDP bucket closes when it has reached its cap (PyTorch: 1 MiB, then 25 MiB).
    cuts: layer names at which the second and later stages begin; empty balances stages by time.
    tp_style: ``"column"`` splits every linear, convolution and embedding by output features and gathers the output;
        ``"megatron"`` follows a column split by a row split where only elementwise or per-head work lies between.
    input_copy: inputs are copied from host memory at the start of a ``"step"``, ahead during the step before
        (``"prefetch"``), or are on the device already (``"none"``).
    num_steps: training steps to run, one after the other.
    algorithms: (collective, algorithm) pairs, where it is not to be the first that is registered for it.

    Raises PlanError for values that cannot be, or that contradict each other.
    """

    dp: int = 1
    tp: int = 1
    pp: int = 1
    data: str = "ddp"
    batch: int | None = None
    micro_batch: int | None = None
    schedule: str = "gpipe"
    first_bucket_bytes: int = 1 * MIB
    bucket_bytes: int = 25 * MIB
    cuts: tuple[str, ...] = ()
    tp_style: str = "column"
    input_copy: str = "step"
    num_steps: int = 1
    algorithms: tuple[tuple[str, str], ...] = ()

    def __post_init__(self) -> None:
        object.__setattr__(self, "cuts", _names(self.cuts))
        object.__setattr__(self, "algorithms", tuple((str(kind), str(name)) for kind, name in self.algorithms))
        for name in ("dp", "tp", "pp", "num_steps", "first_bucket_bytes", "bucket_bytes"):
            _require_positive(name, getattr(self, name))
        for name in ("batch", "micro_batch"):
            if getattr(self, name) is not None:
                _require_positive(name, getattr(self, name))
        if max(self.batch or 0, self.micro_batch or 0) > MAX_BATCH:
            raise PlanError(f"a batch is at most {MAX_BATCH} samples")
        _require_one_of("data", self.data, DATA_MODES)
        if self.schedule not in SCHEDULES:
            _require_one_of("schedule", self.schedule, SCHEDULES.names())
        _require_one_of("tp_style", self.tp_style, TP_STYLES)
        _require_one_of("input_copy", self.input_copy, INPUT_COPIES)
        if self.data == "dp":
            self._check_data_parallel()
        if self.cuts and len(self.cuts) != self.pp - 1:
            raise PlanError(f"{self.pp} stages need {self.pp - 1} cuts, got {len(self.cuts)}: {', '.join(self.cuts)}")

    def _check_data_parallel(self) -> None:
        if self.tp > 1 or self.pp > 1:
            raise PlanError(
                "DataParallel (dp) keeps one process with whole replicas, so it does not combine with tensor or "
                "pipeline parallelism: use ddp"
            )
        if self.micro_batch is not None:
            raise PlanError("DataParallel (dp) runs the whole batch of a replica at once: micro-batches need ddp")
        if self.input_copy == "prefetch":
            raise PlanError("DataParallel (dp) scatters inputs inside the step: copies ahead of it need ddp")

    @property
    def num_ranks(self) -> int:
        return self.dp * self.tp * self.pp

    @property
    def axes(self) -> tuple[tuple[str, int], ...]:
        """Axes of the rank grid, fastest first: tensor-parallel ranks are neighbours, pipeline stages far apart."""
        return (("tp", self.tp), ("dp", self.dp), ("pp", self.pp))


def micro_batches(batch: int, micro_batch: int | None) -> tuple[int, ...]:
    """Split ``batch`` samples into micro-batches of at most ``micro_batch``, with sizes that differ by at most one.

    Raises PlanError when a micro-batch would be larger than the batch.
    """
    if micro_batch is None:
        return (batch,)
    if micro_batch > batch:
        raise PlanError(f"a micro-batch of {micro_batch} samples is larger than the replica's batch of {batch}")
    count = -(-batch // micro_batch)
    size, extra = divmod(batch, count)
    return tuple(size + (i < extra) for i in range(count))


def _names(cuts: object) -> tuple[str, ...]:
    """Any sequence of names as a tuple; a text by itself is taken for a mistake."""
    if isinstance(cuts, str) or not isinstance(cuts, Sequence):
        raise PlanError(f"cuts must be a sequence of layer names, got {cuts!r}")
    return tuple(str(name) for name in cuts)


def _require_positive(name: str, value: object) -> None:
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise PlanError(f"{name} must be a positive whole number, got {value!r}")


def _require_one_of(name: str, value: str, known: tuple[str, ...]) -> None:
    if value not in known:
        raise PlanError(f"{name} must be one of {', '.join(known)}; got {value!r}{nearest(str(value), known)}")
