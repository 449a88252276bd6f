"""A load-store result as plain data with stable keys, described in docs/reference/loadstore-json.md."""

from __future__ import annotations

import numpy as np

from trine.common._version import __version__
from trine.gpu.records import STATE_NAMES
from trine.gpu.results import resources, run
from trine.gpu.results.bottleneck import Bottleneck
from trine.gpu.results.load_store_columns import KIND, LINK, OPERATION, REQUEST, USE
from trine.gpu.results.resources import ResourceUses, Traffic
from trine.results.columns import to_row
from trine.results.report import Row, Table, evidence_rows, seconds

#: Maximum number of listed operations (kind and label); the longest come first.
MAX_OPERATIONS = 200


def document(result: ResourceUses, bottleneck: Bottleneck) -> Row:
    """Return the whole result as plain data; times in seconds, sizes in bytes."""
    start_ps, end_ps = result.window_ps
    return {
        "program": result.program.name,
        **to_row(result, "finished", "time_s"),
        "kernels_begin_s": seconds(start_ps),
        "kernels_end_s": seconds(end_ps),
        "payload_bytes": result.program.payload_bytes or None,
        **to_row(result, "algbw_bytes_per_s", "busbw_bytes_per_s"),
        "ranks": result.program.num_gpus,
        "ranks_replayed": result.num_replayed,
        "gpu_model": result.model.name,
        "cluster": result.cluster.name,
        "bottleneck": to_row(bottleneck),
        "wavefronts": state_row(list(run.state_times(result).values())),
        "traffic": {
            "fabric": _traffic_row(resources.fabric_traffic(result)),
            "noc": _traffic_row(resources.noc_traffic(result)),
        },
        "gpus": gpu_rows(result),
        "cus": cu_rows(result),
        "resource_kinds": KIND.rows(result.kinds),
        "resources": resource_columns(result),
        "links": LINK.rows(result.links),
        "lanes": lane_rows(result),
        "operations": OPERATION.rows(result.operations[:MAX_OPERATIONS]),
        "operations_left_out": max(0, len(result.operations) - MAX_OPERATIONS),
        "folding": None if result.fold is None else to_row(result.fold, "classes", "group_size", "why_unfolded"),
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
        "gpus": gpu_rows(result),
        "cus": cu_rows(result),
        "resource_kinds": KIND.rows(result.kinds),
        "links": LINK.rows(result.links),
        "lanes": lane_rows(result),
        "operations": OPERATION.rows(result.operations[:MAX_OPERATIONS]),
    }


def state_row(times_ps: list[int]) -> Row:
    """Return wavefront time by state; the shares sum to a million, unless no wavefront ran."""
    shares = run.parts_of(times_ps)
    return {
        name: {"time_s": seconds(time), "share_ppm": share}
        for name, time, share in zip(STATE_NAMES, times_ps, shares, strict=True)
    }


def gpu_rows(result: ResourceUses) -> list[Row]:
    """Return the counters of each simulated GPU."""
    return [
        {
            **USE.row(gpu),
            "cus": result.model.num_cus,
            **REQUEST.row(gpu),
            "wavefronts": state_row(list(gpu.state_ps)),
        }
        for gpu in result.gpus
    ]


def cu_rows(result: ResourceUses) -> list[Row]:
    """Return one row per CU that ran a workgroup."""
    occupied, workgroups = run.occupied(result), run.workgroups_of_cus(result)
    records, time = result.records, result.time_ps
    rows = []
    for gpu, cu in np.argwhere(workgroups > 0).tolist():
        utilisation = int(occupied[gpu, cu]) / time if time else 0.0
        states = {name: seconds(ps) for name, ps in zip(STATE_NAMES, records.state_ps[gpu, cu].tolist(), strict=True)}
        rows.append(
            {
                "rank": int(records.ranks[gpu]),
                "cu": cu,
                "workgroups": int(workgroups[gpu, cu]),
                "occupied_s": seconds(int(occupied[gpu, cu])),
                "utilisation": utilisation,
                "wavefront_s": states,
            }
        )
    return rows


def resource_columns(result: ResourceUses) -> Row:
    """Return the resources of a GPU, and each simulated GPU's values per resource."""
    records, is_present = result.records, resources.exists(result)
    chosen = np.flatnonzero(is_present)
    time = max(1, result.time_ps)
    names, kinds = records.resources.names, records.resources.kinds
    chosen_names = [names[i] for i in chosen]
    chosen_kinds = [kinds[i] for i in chosen]
    gpus = []
    for gpu in range(len(records.ranks)):
        gpus.append(
            {
                "rank": int(records.ranks[gpu]),
                "busy_s": [seconds(ps) for ps in records.resource_busy_ps[gpu, chosen].tolist()],
                "utilisation": (records.resource_busy_ps[gpu, chosen] / time).tolist(),
                "data_messages": records.resource_data[gpu, chosen].tolist(),
                "control_messages": records.resource_control[gpu, chosen].tolist(),
            }
        )
    return {"names": chosen_names, "kinds": chosen_kinds, "gpus": gpus}


def lane_rows(result: ResourceUses) -> list[Row]:
    """Return one row per used lane."""
    records, time = result.records, result.time_ps
    names = {use.link: use.name for use in result.links}
    used = resources.used_lanes(result)
    columns = (records.lane_link, records.lane_number, records.lane_busy_ps, records.lane_data, records.lane_control)
    rows = []
    for link, lane, busy, data, control in zip(*(column[used].tolist() for column in columns), strict=True):
        rows.append(
            {
                "link": names[link],
                "lane": lane,
                "busy_s": seconds(busy),
                "utilisation": busy / time if time else 0.0,
                "data_messages": data,
                "control_messages": control,
            }
        )
    return rows


def _traffic_row(traffic: Traffic) -> Row:
    messages = {"data_messages": traffic.data, "control_messages": traffic.control}
    return messages | to_row(traffic, "data_bytes", "control_bytes", "control_share_of_bytes")
