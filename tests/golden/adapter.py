"""The golden questions' only access to trine: its command line in process, and results that no command writes.

Adapt this file when names change; the records in ``questions/`` do not change with it.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

import trine


class Said(NamedTuple):
    """Answer of a command line."""

    code: int
    stdout: str
    stderr: str


def command(words: list[str]) -> Said:
    """Run ``trine`` with these arguments in this process."""
    from click.testing import CliRunner

    from trine.cli.main import app

    if words[0] == "validate":  # computed, not read from the stored report
        from validation.__main__ import app as validation

        done = CliRunner().invoke(validation, words[1:])
    else:
        done = CliRunner().invoke(app, words)
    if done.exception is not None and not isinstance(done.exception, SystemExit):
        raise done.exception
    return Said(done.exit_code, done.stdout, done.stderr)


def version() -> str:
    return trine.__version__


def asked(words: list[str]) -> dict[str, Any]:
    """Return rows by name for ``api gpu ...``, ``api replay ...`` and ``api snapshots ...``, which are no commands."""
    return {"gpu": _gpu, "replay": _replay, "snapshots": _snapshots}[words[0]](*words[1:])


def _gpu(kernel: str, protocol: str, cluster: str, gpus: str, size: str) -> dict[str, Any]:
    """Return the records of a built-in GPU program, with every GPU simulated."""
    op, _, algorithm = kernel.partition("/")
    options = trine.LoadStoreOptions(algorithm=algorithm, protocol=protocol, workgroups=3, wavefronts=2, fold="off")
    machine = trine.load_cluster(cluster, gpus=int(gpus))
    return _columns(trine.loadstore_collective(op, [int(size)], machine, options=options).result)


def _replay(kernel: str, sync: str) -> dict[str, Any]:
    """Return the records of a fused kernel's target."""
    shape = {"rows": 128, "cols": 64} if kernel.startswith("embedding") else {"rows": 64, "cols": 128}
    return _columns(trine.run_eidolon(trine.EidolonOptions(kernel=kernel, sync=sync, **shape)).inside)


def _columns(result: Any) -> dict[str, Any]:
    """Return the records inside GPUs as rows, in any order; this fixes the names of their columns."""
    records, program = result.records, result.program
    links = [link.name for link in result.cluster.links]
    per_gpu = (
        "loads", "stores", "acquires", "releases", "polls", "load_latency_ps", "packets", "l2_hits", "l2_misses",
        "flagged_loads", "wakeups", "spurious_wakeups", "monitor_full",
    )  # fmt: skip

    def rows(*columns: Any) -> list[Any]:
        return list(zip(*(getattr(records, each).tolist() for each in columns), strict=True))

    return {
        "end_ps": int(records.end_ps),
        "workgroups": rows("workgroup_start_ps", "workgroup_end_ps", "workgroup_cu"),
        "operations": list(zip(program.op_kind.tolist(), rows("op_start_ps", "op_end_ps"), strict=True)),
        "states": records.state_ps.tolist(),
        "resources": [
            list(zip(records.resources.names, *(column[gpu].tolist() for column in _busy(records)), strict=True))
            for gpu in range(len(records.ranks))
        ],
        "lanes": [
            (links[link], *row)
            for link, *row in rows("lane_link", "lane_number", "lane_data", "lane_control", "lane_busy_ps")
        ],
        "gpus": rows(*per_gpu),
    }


def _busy(records: Any) -> tuple[Any, ...]:
    return records.resource_data, records.resource_control, records.resource_busy_ps


def _snapshots(network: str) -> dict[str, Any]:
    """Run, stopping before some tasks and resuming; return the instant of each stop and all times at the end."""
    from trine.engine import advance

    machine = trine.build_topology("torus:2x3", "20 GB/s", "1 us", 6)
    plan = trine.Plan(dp=3, pp=2, micro_batch=32, schedule="1f1b")
    graph = trine.simulate("vgg13-h100-b128", plan, cluster=machine, fold="off").graph
    stops, snapshot = [], None
    for part in range(1, 6):
        hold = np.arange(graph.num_tasks) >= graph.num_tasks * part // 6
        hold &= True if snapshot is None else snapshot.ready_ps < 0
        snapshot = advance(graph, hold=hold, resume=snapshot, network=network)
        stops.append(int(snapshot.now_ps))
    done = advance(graph, resume=snapshot, network=network)
    columns = (graph.rank, done.ready_ps, done.start_ps, done.end_ps)
    return {"stops": stops, "tasks": list(zip(*(column.tolist() for column in columns), strict=True))}
