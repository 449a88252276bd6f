"""Options of one run at the replay level. Checked on construction: options without effect are refused."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from trine.common.arguments import named_arguments, option
from trine.common.inputs import exists
from trine.common.shown import OneLine
from trine.common.units import parse_time
from trine.errors import InputError, nearest
from trine.gpu.kernels.fused.build import known_fused
from trine.gpu.peers import FABRICS, Arrivals
from trine.gpu.program import GpuProgram
from trine.gpu.replay.distributions import Distribution, parse_distribution
from trine.gpu.replay.writes import WriteTable

#: Start of a wake-up time: when the target's last workgroup begins to wait, or the start of the run.
WAIT, START = "wait", "start"
MOMENTS = (WAIT, START)
#: Sources of the peers' writes. At most one is set; the default is a wake-up time of WAKEUP.
SOURCES = ("wakeup", "distribution", "writes", "arrivals", "symmetric")
WAKEUP = "10 us"

#: Options only for fused kernels; names of :func:`trine.gpu.kernels.fused.build.build_fused`.
SIZES = (
    "rows", "cols", "inner", "dtype_bytes", "tile", "workgroups", "wavefronts", "algorithm", "flags", "flag_spacing",
)  # fmt: skip
#: Counting options, and times.
_NUMBERS = (
    "rows", "cols", "inner", "dtype_bytes", "workgroups", "wavefronts", "flag_spacing", "peers", "target", "seed",
    "monitor_capacity", "issue_seed",
)  # fmt: skip
_TIMES = ("wakeup", "poll", "sleep", "monitor_wakeup")


@named_arguments
@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class EidolonOptions(OneLine):
    """One run: the kernel of one GPU, its replayed peers' writes, and its way of waiting. None means the default.

    Times (wakeup, straggler, poll, sleep, monitor_wakeup): text with a unit (``"10 us"``), or picoseconds.

    Parameters
    ----------
    kernel: a fused kernel (docs/background/fused-kernels.md), a program, or the path of a text program.
    rows to flag_spacing: of a fused kernel. fused: False: the same as two kernels, one after the other.
    peers: replayed GPUs [3, or as in the program or the record]. target: for a program, the simulated rank [0, or the
        record's].
    wakeup: arrival of each peer's flags, and of the data before them, after ``wakeup_from``. distribution: the same
        with a random time per flag, ``"uniform(5 us, 15 us)"``; ``together``: one draw per peer. straggler: rank ->
        delay of its writes.
    writes: a table, or a file (docs/formats/peer-writes.md). arrivals: the record of a run, or its file. symmetric: the
        peers behave like the target, as recorded in a run of all GPUs.
    fabric: ``ideal``: writes begin at the target's memory; ``modelled``: at the links from the peers.
    sync: ``spin``, ``mwait`` or ``sleep`` [as the GPU model; the preset spins]. poll, sleep, monitor_capacity,
        monitor_wakeup: :func:`trine.gpu.model.options.ModelOptions`.
    issue_seed: seed for the random issue order of a CU's ready wavefronts [they take turns].
    gpu_model: name or file [the model of the cluster's GPUs]. cluster: name or file.

    Raises
    ------
    InputError: names the option.
    """

    kernel: str | os.PathLike[str] | GpuProgram = "gemv-allreduce"
    rows: int | None = option(None, "Set the rows of the matrix [1024].")
    cols: int | None = option(None, "Set the columns of the matrix [1024; embedding 256].")
    inner: int | None = option(None, "Set the depth of a GEMM [256], or the rows of a sum [16].")
    dtype_bytes: int | None = option(None, "Set the bytes of an element [4].")
    tile: tuple[int, ...] | None = option(None, "Set the tile of the result.")
    workgroups: int | None = option(None, "Set the workgroups of the kernel [one per tile].")
    wavefronts: int | None = None
    algorithm: str | None = option(None, "Choose the all-reduce algorithm.")
    flags: str | None = option(None, "Share one flag among peers, or give each its own [joint].")
    flag_spacing: int | None = option(None, "Set the bytes between flags [8].")
    fused: bool = option(True, "Run two kernels: compute, then communicate.")
    peers: int | None = option(None, "Replay N peer GPUs [3].")
    target: int | None = option(None, "Simulate this rank of a program [0].")
    wakeup: str | int | None = option(None, "Set the arrival time of peers' flags [10 us].")
    wakeup_from: str | None = option(None, "Count wake-up times from here [wait].")
    distribution: str | Distribution | None = option(None, 'Randomise each flag\'s arrival: "uniform(5 us, 15 us)".')
    seed: int | None = option(None, "Set the seed of --distribution [0].")
    together: bool = option(False, "Let all flags of a peer arrive at once.")
    straggler: Mapping[int, str | int] = option(factory=dict, help="Delay the writes of a peer.")
    writes: WriteTable | str | os.PathLike[str] | None = option(None, "Read peers' writes: CSV, JSON or Parquet.")
    arrivals: Arrivals | str | os.PathLike[str] | None = option(None, "Read the record of a run (.npz).")
    symmetric: bool = option(False, "Let peers behave as the target does.")
    fabric: str | None = option(None, "Choose whether writes go through links [ideal].")
    sync: str | None = option(None, "Choose how wavefronts wait [spin].")
    poll: str | int | None = option(None, "Set the pause between reads of a flag.")
    sleep: str | int | None = option(None, "Set the pause of --sync sleep.")
    monitor_capacity: int | None = option(None, "Limit the sleeping wavefronts [all].")
    monitor_wakeup: str | int | None = option(None, "Set the time from a write to the next read [100 ns].")
    issue_seed: int | None = option(None, "Issue ready wavefronts in a random order, from this seed [in turns].")
    gpu_model: str | None = option(None, "Choose the GPU model: name or file.")
    cluster: str = option("eidola", "Choose the cluster: preset or file.")
    engine: str = option("compiled", "Choose the engine, or its Python twin.")

    def __post_init__(self) -> None:
        self._check_types()
        sources = [name for name in SOURCES if getattr(self, name) not in (None, False)]
        if len(sources) > 1:
            raise InputError(f"{_option(sources[0])} and {_option(sources[1])} both set the peers' writes: give one")
        self._check_words()
        self._refuse_idle()
        if self.is_fused_name:
            if self.target is not None:
                raise InputError(f"--target cannot matter: all ranks of {self.kernel} do the same")
        else:
            self._check_program()
        if self.peers is not None and not 1 <= self.peers <= 4095:
            raise InputError(f"--peers is a number from 1 to 4095, got {self.peers}")

    @property
    def is_fused_name(self) -> bool:
        """Whether trine builds the kernel; otherwise it is a program."""
        return isinstance(self.kernel, str) and self.kernel in known_fused()

    @property
    def source(self) -> str:
        """The source of the peers' writes, one of SOURCES."""
        return next((name for name in SOURCES if getattr(self, name) not in (None, False)), "wakeup")

    @property
    def delay(self) -> Distribution:
        """Distribution of the flags' delay, for the sources ``wakeup`` and ``distribution``."""
        if self.distribution is None:
            return Distribution(kind="constant", first_ps=time_ps("wakeup", self.wakeup_time))
        return self.distribution if isinstance(self.distribution, Distribution) else parse_distribution(
            self.distribution
        )  # fmt: skip

    @property
    def wakeup_time(self) -> str | int:
        return WAKEUP if self.wakeup is None else self.wakeup

    @property
    def sizes(self) -> dict[str, object]:
        """The fused-kernel options that are set."""
        sizes = {name: getattr(self, name) for name in SIZES if getattr(self, name) is not None}
        renamed = {}
        for name, value in sizes.items():
            renamed["waits" if name == "flags" else name] = value
        return renamed

    def _check_types(self) -> None:
        for name in _NUMBERS:
            if not (getattr(self, name) is None or _is_whole(getattr(self, name))):
                raise InputError(f"{_option(name)} is a whole number, got {getattr(self, name)!r:.80}")
        for name in _TIMES:
            if getattr(self, name) is not None:
                time_ps(name, getattr(self, name))
        if not isinstance(self.straggler, Mapping):
            raise InputError(f"straggler is times by rank, such as {{2: '5 us'}}, got {self.straggler!r:.80}")
        if not isinstance(self.distribution, str | Distribution | None):
            raise InputError(f"--distribution is like 'uniform(5 us, 15 us)', got {self.distribution!r:.80}")

    def _check_words(self) -> None:
        for name, choices in (("wakeup_from", MOMENTS), ("fabric", FABRICS)):
            value = getattr(self, name)
            if value is not None and value not in choices:
                raise InputError(f"unknown {_option(name)} {value!r:.80}{nearest(str(value)[:80], choices)}")

    def _refuse_idle(self) -> None:
        has_delay = self.source in ("wakeup", "distribution")
        for name in ("wakeup_from", "straggler"):
            if getattr(self, name) and not has_delay:
                raise InputError(f"{_option(name)} has no effect with {_option(self.source)}, which sets the times")
        varies = self.source == "distribution" and self.delay.kind != "constant"
        for name in ("seed", "together"):
            if getattr(self, name) not in (None, False) and not varies:
                raise InputError(f"{_option(name)} has no effect without --distribution")
        if self.fabric is not None and self.source in ("arrivals", "symmetric"):
            raise InputError(f"--fabric has no effect with {_option(self.source)}: its arrivals are at the I/O port")
        if has_delay:
            for late in self.straggler.values():
                time_ps("straggler", late)
            _ = self.delay

    def _check_program(self) -> None:
        if isinstance(self.kernel, str) and os.sep not in self.kernel and not exists(self.kernel):
            hint = nearest(self.kernel[:80], known_fused())
            raise InputError(f"neither a fused kernel nor a file is called {self.kernel!r:.80}{hint}")
        for name in self.sizes:
            raise InputError(
                f"{_option('flags' if name == 'waits' else name)} is about fused kernels: a program says it itself"
            )
        if not self.fused:
            raise InputError("--unfused needs a fused kernel, not a program")


def time_ps(name: str, value: str | int) -> int:
    """Return picoseconds from text with a unit, or from picoseconds. Raises InputError naming the option."""
    if isinstance(value, str):
        return parse_time(value, _option(name))
    if not _is_whole(value):
        raise InputError(f"{_option(name)} is a time such as '10 us', or whole picoseconds, got {value!r:.80}")
    if value < 0:
        raise InputError(f"{_option(name)} is not negative, got {value} ps")
    return value


def _is_whole(value: object) -> bool:
    return isinstance(value, int | np.integer) and not isinstance(value, bool)


def _option(name: str) -> str:
    return "--straggler" if name == "straggler" else f"--{name.replace('_', '-')}"
