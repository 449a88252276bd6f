"""Profiles of inference engines (presets/serving/engines/NAME.yaml): scheduling, memory and host time, by version."""

from __future__ import annotations

import re
from functools import cache
from typing import Annotated, Any, Literal

from trine.cluster.presets import GpuSpec
from trine.common.inputs import preset_names
from trine.common.schema import Field, Spec
from trine.common.spec import check, load_mapping
from trine.errors import InputError, nearest
from trine.inference.precision import SERVING

_FOLDER = SERVING / "engines"
Count = Annotated[int, Field(ge=1, le=10_000_000)]
Microseconds = Annotated[float, Field(ge=0, le=1e7)]
#: Defaults by the least GPU memory, in gigabytes (10^9 bytes).
BySize = Annotated[dict[int, int], Field(min_length=1)]


class EngineProfile(Spec):
    """One engine at one version.

    kernels: whose measured attention and experts it runs. batching: a step is ``mixed`` (decodes, and chunks of prompts
    up to the budget), ``prefill-first`` (chunks alone while a prompt waits) or ``whole-prompts`` (decodes, and prompts
    that fit whole). max_batched_tokens, max_sequences: of one step, by the GPU's memory; small_gpus: beginnings of
    names of GPUs that take the smallest defaults. memory_fraction: share for weights and KV cache, of the ``device`` or
    of what weights and activations leave ``free``. reserve_bytes, with further ones per token of the budget and per way
    of tp x pp: memory outside the framework, or outside weights and KV cache if reserve_holds_activations.
    kv_precision: the ``model``'s dtype, or the ``checkpoint``'s. block_tokens: of the paged KV cache.
    graph_sizes: batches of decodes that CUDA graphs replay, as multiples of a step, by the batch up to which the step
    holds; other batches are padded to the next one. host_us, sequence_us: CPU time of a step, and of each sequence
    in it; host: ``overlapped`` with the GPU's step (the longer one counts) or ``exposed`` (both count). exposed_us,
    exposed_sequence_us: the same times of work that nothing hides. launch_us: CPU time of a kernel launch without a
    graph. front_end_us: HTTP and the first answer of a request; tokenise_us: time to tokenise a token of its prompt;
    tokenises: prompts that arrive at the same time ``together`` on several threads, or ``one-by-one``. all_reduce: the
    engine's kernel; custom_all_reduce_bytes: its largest message by number of GPUs, above which NCCL runs. exchange: of
    tokens between attention replicas and experts. shares_keys: whether the queries of a group read their keys and
    values once in a decode step; else each query head reads them.
    """

    name: str
    version: str
    title: str
    kernels: Literal["vllm", "sglang", "trtllm"]
    batching: Literal["mixed", "prefill-first", "whole-prompts"]
    max_batched_tokens: BySize
    max_sequences: BySize
    small_gpus: list[str]
    memory_fraction: Annotated[float, Field(gt=0, le=1)]
    memory_of: Literal["device", "free"]
    reserve_bytes: Annotated[int, Field(ge=0)]
    reserve_holds_activations: bool
    reserve_bytes_per_token: Annotated[int, Field(ge=0)] = 0
    reserve_bytes_per_way: Annotated[int, Field(ge=0)] = 0
    kv_precision: Literal["model", "checkpoint"]
    block_tokens: Count
    graph_sizes: Annotated[dict[int, int], Field(min_length=1)]
    host: Literal["overlapped", "exposed"]
    host_us: Microseconds
    sequence_us: Microseconds
    exposed_us: Microseconds
    exposed_sequence_us: Microseconds = 0.0
    launch_us: Microseconds
    front_end_us: Microseconds
    tokenise_us: Microseconds
    tokenises: Literal["together", "one-by-one"]
    all_reduce: Literal["vllm", "trtllm"]
    custom_all_reduce_bytes: dict[int, int]
    exchange: Literal["gather", "one-sided"] = "gather"
    shares_keys: bool = True
    sources: dict[str, str]

    @property
    def graph_batch(self) -> int:
        """The largest batch that CUDA graphs replay."""
        return max(self.graph_sizes)

    def padded(self, decodes: int) -> int:
        """Return the batch of the CUDA graph that runs ``decodes`` sequences; beyond all graphs, their own number."""
        for largest in sorted(self.graph_sizes):
            if decodes <= largest:
                step = self.graph_sizes[largest]
                return -(-decodes // step) * step
        return decodes

    def default_for(self, gpu: GpuSpec, sizes: dict[int, int]) -> int:
        """Return the default of a GPU from :attr:`max_batched_tokens` or :attr:`max_sequences`."""
        is_small = any(gpu.name.startswith(name) for name in self.small_gpus)
        gigabytes = 0.0 if is_small else gpu.memory_bytes / 1e9
        return sizes[max(size for size in sizes if size <= gigabytes)]


@cache
def known_engines() -> tuple[str, ...]:
    """Return the names of all engines, sorted."""
    return preset_names(_FOLDER)


@cache
def load_engine(name: str, version: str = "") -> EngineProfile:
    """Return an engine at a version; without a version, at the newest one that trine knows.

    Raises InputError for an unknown engine (with the nearest name) or version (with the known ones).
    """
    if name not in known_engines():
        raise InputError(f"unknown engine {name[:40]!r}{nearest(name, known_engines())}", field="engine")
    path = _FOLDER / f"{name}.yaml"
    data: Any = load_mapping(path)
    versions, last = data.pop("versions"), data.pop("last")
    version = version or last
    number = _numbers(version)
    oldest = versions[0]["since"]
    if not number or number < _numbers(oldest) or number[:2] > _numbers(last)[:2]:
        raise InputError(f"unknown version {version[:40]!r} of {name}: known are {oldest} to {last}", field="engine")
    for each in versions:
        if _numbers(each["since"]) <= number:
            base = {**data, **{key: value for key, value in each.items() if key != "since"}}
    return check(EngineProfile, {**base, "name": name, "version": version}, path)


def _numbers(version: str) -> tuple[int, ...]:
    """Return the leading numbers of a version: (0, 18, 1) of ``0.18.1rc2``; () of a text without any."""
    leading = re.match(r"\d+(?:\.\d+)*", version)
    return tuple(int(part) for part in leading.group().split(".")) if leading else ()
