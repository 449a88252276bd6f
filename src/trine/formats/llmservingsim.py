"""LLMServingSim: write predicted kernel times as a profile bundle, instead of a profiling run on a GPU.

A bundle (casys-kaist/LLMServingSim, docs/docs/profiler/output-bundle.md at 11b96ae) is a folder
``HARDWARE/MODEL/VARIANT`` with ``meta.yaml`` and, for each tensor-parallel degree, ``tpN/dense.csv`` (times by tokens),
``per_sequence.csv`` (by sequences), ``attention.csv`` (by prefill chunk, query-weighted key length, decodes and their
context) and ``moe.csv`` (by tokens and distinct experts). Times are microseconds. Versions up to August 2026 (5daddb2)
read the cached tokens of a chunk (``kv_prefill``) in place of its key length, and experts without expert parallelism:
``older`` writes such a bundle. That simulator adds collectives itself; the format cannot express CPU time.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from trine.common.outputs import open_output, write_csv, write_text
from trine.common.spec import dump_yaml
from trine.errors import InputError
from trine.formats.llmservingsim_tables import (
    ATTENTION,
    EXPERTS,
    MAX_SEQUENCES,
    MAX_TOKENS,
    OLDER_ATTENTION,
    Blocks,
    attention_rows,
    dense_rows,
    expert_rows,
    older_attention,
    sequence_rows,
)
from trine.inference.deployment import resolve
from trine.inference.step_time import StepLayout
from trine.inference.steps import Deployment
from trine.workload.architecture.blocks import Attention, Mixture, Mlp

if TYPE_CHECKING:
    from trine.cluster import Cluster
    from trine.workload.architecture.model import Architecture


def write_bundle(
    folder: str | Path,
    model: Architecture | str,
    cluster: Cluster | str,
    *,
    hardware: str,
    name: str,
    tp: Sequence[int] = (1,),
    precision: str = "",
    kv_precision: str = "",
    older: bool = False,
) -> Path:
    """Write a bundle below ``folder`` (that simulator's ``profiler/perf``) and return its path.

    hardware, name: as its cluster file names GPU and model, such as ``H100`` and ``meta-llama/Llama-3.1-8B``. tp:
    tensor-parallel degrees. older: whether to write the columns of versions up to August 2026.

    Raises InputError: names with other characters, a model whose layers have anything but full softmax attention
    with a gated network or experts, and as :func:`trine.step_time` does.
    """
    for label, text in (("hardware", hardware), ("name", name)):
        if not re.fullmatch(r"[\w.-]+(/[\w.-]+)?", text) or ".." in text:
            raise InputError(f"takes letters, digits and . - _, got {text[:40]!r}", field=label)
    deployments = {}
    for ways in tp:
        layout = StepLayout(tp=ways, precision=precision, kv_precision=kv_precision)
        deployments[ways] = resolve(layout.job(model, cluster))
    first = deployments[tp[0]]
    blocks = _blocks(first)
    variant = first.precision_name + ("" if first.kv == "bf16" else f"-kv{first.kv}")
    root = Path(folder) / hardware / name / variant
    for ways, deployment in deployments.items():
        _write_degree(root / f"tp{ways}", deployment, blocks, older)
    meta = {
        "profiler_version": "trine", "vllm_version": first.engine.version, "gpu": first.gpu.name,
        "hardware": hardware, "model": name, "variant": variant, "tp_degrees": list(tp),
        "engine_effective": {"max_num_batched_tokens": MAX_TOKENS, "max_num_seqs": MAX_SEQUENCES},
        "skew_fit": {"enabled": False},
    }  # fmt: skip
    write_text(root / "meta.yaml", dump_yaml(meta), follow=False)
    return root


def _blocks(deployment: Deployment) -> Blocks:
    """Return the blocks of a model. Raises InputError for one that the format has no layers for."""
    model = deployment.model
    mixers = {layer.mixer for layer in model.layers}
    networks = {layer.feed_forward for layer in model.layers}
    attention = next(iter(mixers))
    plain = len(mixers) == 1 and isinstance(attention, Attention) and not attention.window and not attention.indexer
    dense = [block for block in networks if isinstance(block, Mlp)]
    mixtures = [block for block in networks if isinstance(block, Mixture)]
    known = len(dense) + len(mixtures) == len(networks) and max(len(dense), len(mixtures)) == 1
    is_shared = any(block.shared for block in mixtures) or any(layer.beside is not None for layer in model.layers)
    if not isinstance(attention, Attention) or not plain or not known or is_shared:
        raise InputError(f"a bundle has full attention with one kind of network; {model.name} differs", field="model")
    return Blocks(attention, dense[0] if dense else None, mixtures[0] if mixtures else None)


def _write_degree(folder: Path, deployment: Deployment, blocks: Blocks, older: bool) -> None:
    """Write the tables of one tensor-parallel degree; older: in the columns of versions up to August 2026."""
    folder.mkdir(parents=True, exist_ok=True)
    _write(folder / "dense.csv", ("layer", "tokens", "time_us"), dense_rows(deployment, blocks))
    _write(folder / "per_sequence.csv", ("layer", "sequences", "time_us"), sequence_rows(deployment))
    attention = attention_rows(deployment, blocks.attention)
    if older:
        _write(folder / "attention.csv", OLDER_ATTENTION, older_attention(attention))
    else:
        _write(folder / "attention.csv", ATTENTION, attention)
    if blocks.mixture is None:
        return
    experts = expert_rows(deployment, blocks.mixture)
    if older:
        _write(folder / "moe.csv", EXPERTS[1:], (row[1:] for row in experts if row[0] == 1))
    else:
        _write(folder / "moe.csv", EXPERTS, experts)


def _write(path: Path, header: tuple[str, ...], rows: Iterable[tuple[object, ...]]) -> None:
    with open_output(path, follow=False) as file:
        write_csv(file, header, ((*row[:-1], f"{row[-1]:.6g}") for row in rows))
