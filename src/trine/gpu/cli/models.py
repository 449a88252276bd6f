"""``trine gpu``: the parameters of the GPU models, number by number."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

from trine.cli.completions import gpu_models
from trine.cli.options import OUTPUT, Json, Option, argument
from trine.cli.output import show, show_table, write_json, written

if TYPE_CHECKING:
    from trine.gpu.model import GpuModel


def list_models(json: Json = None) -> None:
    """List the GPU models of the load-store level.

    Example: trine gpu list
    """
    from trine.common.units import format_bandwidth, format_clock
    from trine.gpu.model.files import known_gpu_models, load_gpu_model

    rows, cells = [], []
    for name in known_gpu_models():
        model = load_gpu_model(name)
        rate = model.memory.bytes_per_s * model.memory.num_channels
        counts = _counts(model)
        clock, memory = format_clock(model.cycle_ps), format_bandwidth(rate)
        cells.append((name, clock, model.num_cus, model.noc.kind, memory, model.ports.count, _words(counts)))
        rows.append(
            {"name": name, "cus": model.num_cus, "noc": model.noc.kind, "evidence": counts, "notes": model.notes}
        )
    titles = ("name", "clock", "CUs", "inside", "memory", "ports", "numbers are")
    show_table("{:15} {:>9} {:>4}  {:9} {:>10} {:>5}  {}", titles, cells, json)
    write_json({"gpu_models": rows}, json, "gpu list")


def show_model(
    name: Annotated[str, argument("GPU model or its file.", "NAME|FILE", gpu_models)],
    sources: Annotated[bool, Option("Print the source of each number too.")] = False,
    yaml: Annotated[str | None, Option("Write the model as a file to edit.", "FILE", OUTPUT)] = None,
    json: Json = None,
) -> None:
    """Show a GPU model: every number, its evidence, and the effects left out.

    Example: trine gpu show h100-sxm --sources
    """
    from trine.common.outputs import write_text
    from trine.common.spec import dump_yaml
    from trine.formats.clusters import check_ending
    from trine.gpu.model import shown, values
    from trine.gpu.model.files import load_gpu_model, to_dict

    check_ending(yaml, "yaml")
    model = load_gpu_model(name)
    show(f"{model.name}: numbers are {_words(_counts(model))}", json)
    for field, value in values(model):
        show(f"  {field.path:21} {shown(field, value):>13}  {model.evidence[field.path]:9} {field.meaning}", json)
        if sources:
            show(f"  {'':21} {model.sources[field.path]}", json)
    for line in _totals(model):
        show(line, json)
    if model.notes:
        show(f"notes: {model.notes}", json)
    if json is not None:
        write_json(_document(model), json, "gpu show")
    written(yaml, lambda path: write_text(path, dump_yaml(to_dict(model))))


def _counts(model: GpuModel) -> dict[str, int]:
    """Return the number of fields for each kind of evidence."""
    from trine.common.evidence import ASSUMED, MEASURED, MODELLED
    from trine.gpu.model import values

    words = [model.evidence[field.path] for field, _ in values(model)]
    return {word: words.count(word) for word in (MEASURED, MODELLED, ASSUMED)}


def _words(counts: dict[str, int]) -> str:
    return ", ".join(f"{count} {word}" for word, count in counts.items() if count)


def _totals(model: GpuModel) -> list[str]:
    """Return lines with derived values: total bandwidths, and the time of a load from local memory."""
    from trine.common.units import format_bandwidth, format_bytes, format_time
    from trine.gpu.model.derived import local_load_ps

    memory = model.memory
    lines = [f"memory in all: {format_bandwidth(memory.num_channels * memory.bytes_per_s)}"]
    if model.l2 is not None:
        lines.append(f"L2 in all: {format_bandwidth(memory.num_channels * model.l2.bytes_per_s)}")
        lines.append(f"load that hits the L2: {format_time(local_load_ps(model, hit=True))}")
    lines.append(f"load from memory: {format_time(local_load_ps(model, hit=False))} (on an idle CU)")
    lines.append(f"in flight at most: {format_bytes(model.max_outstanding * model.line_bytes)} a compute unit")
    return lines


def _document(model: GpuModel) -> dict[str, Any]:
    from trine.gpu.model import values

    fields = {
        field.path: {
            "value": value,
            "unit": {"time": "ps", "clock": "ps", "bytes": "B", "rate": "B/s"}.get(field.unit),
            "evidence": model.evidence[field.path],
            "source": model.sources[field.path],
        }
        for field, value in values(model)
    }
    return {"name": model.name, "notes": model.notes, "fields": fields}
