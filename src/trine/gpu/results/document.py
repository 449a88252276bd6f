"""A load-store result as plain data with stable keys, described in docs/reference/loadstore-json.md."""

from __future__ import annotations

from dataclasses import asdict

import numpy as np

from trine.common._version import __version__
from trine.gpu.records import STATE_NAMES
from trine.gpu.results import resources, run
from trine.gpu.results.bottleneck import Bottleneck
from trine.gpu.results.resources import ResourceUses, Traffic
from trine.gpu.results.run import GpuUse
from trine.results.report import Row, Table, evidence_rows, seconds

#: Maximum number of listed operations (kind and label); the longest come first.
MAX_OPERATIONS = 200


def document(result: ResourceUses, bottleneck: Bottleneck) -> Row:
    """Return the whole result as plain data; times in seconds, sizes in bytes."""
    start_ps, end_ps = result.window_ps
    return {
        "program": result.program.name,
        "finished": result.finished,
        "time_s": seconds(result.time_ps),
        "kernels_begin_s": seconds(start_ps),
        "kernels_end_s": seconds(end_ps),
        "payload_bytes": result.program.payload_bytes or None,
        "algbw_bytes_per_s": result.algbw_bytes_per_s,
        "busbw_bytes_per_s": result.busbw_bytes_per_s,
        "ranks": result.program.num_gpus,
        "ranks_replayed": result.num_replayed,
        "gpu_model": result.model.name,
        "cluster": result.cluster.name,
        "bottleneck": asdict(bottleneck),
        "wavefronts": state_row(list(run.state_times(result).values())),
        "traffic": {
            "fabric": _traffic_row(resources.fabric_traffic(result)),
            "noc": _traffic_row(resources.noc_traffic(result)),
        },
        "gpus": [gpu_row(result, gpu) for gpu in result.gpus],
        "cus": cu_rows(result),
        "resource_kinds": kind_rows(result),
        "resources": resource_columns(result),
        "links": link_rows(result),
        "lanes": lane_rows(result),
        "operations": operation_rows(result),
        "operations_left_out": max(0, len(result.operations) - MAX_OPERATIONS),
        "folding": folding_row(result),
        "evidence": evidence_rows(result.evidence),
        "not_modelled": list(result.not_modelled),
        "notes": [*result.program.notes, *result.notes],
        "simulator": {
            "version": __version__,
            "engine": result.records.engine,
            "events": result.records.num_events,
            "gpus_simulated": len(result.records.ranks),
            "wall_s": result.wall_s,
        },
    }


def tables(result: ResourceUses) -> dict[str, Table]:
    """Return the tables by name, GPU tables first."""
    return {
        "gpus": [gpu_row(result, gpu) for gpu in result.gpus],
        "cus": cu_rows(result),
        "resource_kinds": kind_rows(result),
        "links": link_rows(result),
        "lanes": lane_rows(result),
        "operations": operation_rows(result),
    }


def state_row(times_ps: list[int]) -> Row:
    """Return wavefront time by state; the shares sum to a million, unless no wavefront ran."""
    shares = run.parts_of(times_ps)
    return {
        name: {"time_s": seconds(time), "share_ppm": share}
        for name, time, share in zip(STATE_NAMES, times_ps, shares, strict=True)
    }


def gpu_row(result: ResourceUses, gpu: GpuUse) -> Row:
    """Return the counters of one simulated GPU."""
    latency = gpu.mean_load_latency_ps
    return {
        "rank": gpu.rank,
        "ranks_alike": gpu.stands_for,
        "start_s": seconds(gpu.start_ps) if gpu.start_ps >= 0 else None,
        "end_s": seconds(gpu.end_ps) if gpu.end_ps >= 0 else None,
        "workgroups": gpu.workgroups,
        "cus_used": gpu.occupied_cus,
        "cus": result.model.num_cus,
        "loads": gpu.loads,
        "stores": gpu.stores,
        "acquires": gpu.acquires,
        "releases": gpu.releases,
        "polls": gpu.polls,
        "flag_reads": gpu.flag_reads,
        "non_flag_reads": gpu.non_flag_reads,
        "wakeups": gpu.wakeups,
        "spurious_wakeups": gpu.spurious_wakeups,
        "monitor_full": gpu.monitor_full,
        "packets": gpu.packets,
        "mean_load_latency_s": None if latency is None else latency / 1e12,
        "mean_loads_under_way": gpu.mean_loads_under_way,
        "l2_hits": gpu.l2_hits,
        "l2_misses": gpu.l2_misses,
        "l2_hit_rate": gpu.l2_hit_rate,
        "wavefronts": state_row(list(gpu.state_ps)),
    }


def cu_rows(result: ResourceUses) -> list[Row]:
    """Return one row per CU that ran a workgroup."""
    occupied, workgroups = run.occupied(result), run.workgroups_of_cus(result)
    records, time = result.records, result.time_ps
    return [
        {
            "rank": int(records.ranks[gpu]),
            "cu": cu,
            "workgroups": int(workgroups[gpu, cu]),
            "occupied_s": seconds(int(occupied[gpu, cu])),
            "utilisation": int(occupied[gpu, cu]) / time if time else 0.0,
            "wavefront_s": {
                name: seconds(ps) for name, ps in zip(STATE_NAMES, records.state_ps[gpu, cu].tolist(), strict=True)
            },
        }
        for gpu, cu in np.argwhere(workgroups > 0).tolist()
    ]


def kind_rows(result: ResourceUses) -> list[Row]:
    """Return one row per kind of resource."""
    time = result.time_ps
    return [
        {
            "kind": use.kind,
            "count": use.count,
            "used": use.used,
            "mean_utilisation": use.busy_ps / (use.count * time) if time else 0.0,
            "max_utilisation": use.busiest_ps / time if time else 0.0,
            "busiest": use.busiest,
            "busiest_rank": use.busiest_rank if use.busiest_rank >= 0 else None,
            "data_messages": use.data,
            "control_messages": use.control,
        }
        for use in result.kinds
    ]


def resource_columns(result: ResourceUses) -> Row:
    """Return the resources of a GPU, and each simulated GPU's values per resource."""
    records, there = result.records, resources.exists(result)
    chosen = np.flatnonzero(there)
    time = max(1, result.time_ps)
    names, kinds = records.resources.names, records.resources.kinds
    return {
        "names": [names[i] for i in chosen],
        "kinds": [kinds[i] for i in chosen],
        "gpus": [
            {
                "rank": int(records.ranks[gpu]),
                "busy_s": [seconds(ps) for ps in records.resource_busy_ps[gpu, chosen].tolist()],
                "utilisation": (records.resource_busy_ps[gpu, chosen] / time).tolist(),
                "data_messages": records.resource_data[gpu, chosen].tolist(),
                "control_messages": records.resource_control[gpu, chosen].tolist(),
            }
            for gpu in range(len(records.ranks))
        ],
    }


def link_rows(result: ResourceUses) -> list[Row]:
    """Return one row per used link."""
    time = result.time_ps
    return [
        {
            "link": use.name,
            "bytes_per_s": use.bytes_per_s,
            "lanes": use.lanes,
            "lanes_used": use.used,
            "utilisation": use.utilisation(time),
            "max_lane_utilisation": use.busiest_ps / time if time else 0.0,
            "data_messages": use.data,
            "control_messages": use.control,
            "data_bytes": use.data_bytes,
            "control_bytes": use.control_bytes,
        }
        for use in result.links
    ]


def lane_rows(result: ResourceUses) -> list[Row]:
    """Return one row per used lane."""
    records, time = result.records, result.time_ps
    names = {use.link: use.name for use in result.links}
    used = resources.used_lanes(result)
    columns = (records.lane_link, records.lane_number, records.lane_busy_ps, records.lane_data, records.lane_control)
    return [
        {
            "link": names[link],
            "lane": lane,
            "busy_s": seconds(busy),
            "utilisation": busy / time if time else 0.0,
            "data_messages": data,
            "control_messages": control,
        }
        for link, lane, busy, data, control in zip(*(column[used].tolist() for column in columns), strict=True)
    ]


def operation_rows(result: ResourceUses) -> list[Row]:
    """Return one row per kind and label of operations, at most MAX_OPERATIONS."""
    return [
        {
            "kind": use.kind,
            "label": use.label or None,
            "count": use.count,
            "amount": use.amount,
            "time_s": seconds(use.time_ps),
            "mean_s": use.time_ps / use.count / 1e12,
            "longest_s": seconds(use.longest_ps),
        }
        for use in result.operations[:MAX_OPERATIONS]
    ]


def folding_row(result: ResourceUses) -> Row | None:
    """Return how ranks were folded; None if folding was not requested."""
    fold = result.fold
    if fold is None:
        return None
    return {"classes": fold.classes, "group_size": fold.group_size, "why_unfolded": fold.why_unfolded}


def _traffic_row(traffic: Traffic) -> Row:
    total = traffic.data_bytes + traffic.control_bytes
    return {
        "data_messages": traffic.data,
        "control_messages": traffic.control,
        "data_bytes": traffic.data_bytes,
        "control_bytes": traffic.control_bytes,
        "control_share_of_bytes": traffic.control_bytes / total if total else 0.0,
    }
