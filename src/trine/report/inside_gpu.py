"""The page of a load-store run: ``collective --fidelity loadstore`` and ``kernel run``."""

from __future__ import annotations

from trine.common.units import PS_PER_S, format_bandwidth, format_bytes, format_time
from trine.report.blocks import Bar, Bars, Block, Head, Table
from trine.report.certainty import certainty
from trine.report.generic import table_of_rows
from trine.report.page import Fact, Page, PageSection
from trine.report.reading import Document, amount, number, rows, section, text

#: Words and colours of the states of wavefronts.
_STATES = {
    "compute": ("computing", "compute"), "issue": ("issuing", "forward"),
    "memory": ("waiting for memory", "communication"), "semaphore": ("waiting for other GPUs", "bubble"),
    "barrier": ("waiting at barriers", "idle"),
}  # fmt: skip
_PER_MILLION = 1e6


def inside_gpu_page(document: Document, command: str) -> Page:
    """Return the page of a run of GPU programs."""
    run = section(document, "run") or _largest_size(document)
    evidence = {**document, **{key: run.get(key, []) for key in ("evidence", "not_modelled", "notes")}}
    sections = [inside_section(run)]
    if "links" in run:
        sections.append(_links(run))
    sizes = rows(document, "rows")
    if sizes:
        table = table_of_rows("Sizes", sizes)
        blocks = () if table is None else (table,)
        answer = f"{len(sizes)} size{'s' if len(sizes) > 1 else ''} simulated load by load, store by store."
        sections.insert(0, PageSection(key="fit", question="How long?", answer=answer, blocks=blocks))
    return Page(
        title=_title(document, run), answer=_answer(run), subject=text(document, "command") or "kernel run",
        version=text(document, "version"), facts=_facts(run), sections=(*sections, certainty(evidence, command)),
    )  # fmt: skip


def _largest_size(document: Document) -> Document:
    """Return an answer about several sizes with the values of its largest size, in the units of a run."""
    sizes = rows(document, "rows")
    if not sizes:
        return document
    largest = max(sizes, key=lambda row: amount(row, "size_bytes"))
    size = format_bytes(amount(largest, "size_bytes"))
    return {
        **document, "program": f"{text(document, 'op')} of {size}", "ranks": document.get("num_ranks"),
        "time_s": amount(largest, "time_us") / _PER_MILLION, "bottleneck": largest.get("bottleneck"),
        "busbw_bytes_per_s": amount(largest, "busbw_GBps") * 1e9,
    }  # fmt: skip


def _title(document: Document, run: Document) -> str:
    name = text(run, "program") or text(document, "op") or "kernel"
    return f"{name} on {amount(run, 'ranks'):.0f} × {text(run, 'gpu_model')} ({text(run, 'cluster') or 'one GPU'})"


def _answer(run: Document) -> str:
    time = format_time(amount(run, "time_s") * PS_PER_S)
    sentence = text(section(run, "bottleneck"), "sentence")
    what = sentence.partition(":")[0]
    return f"{time}, {what}." if what else f"The run takes {time}."


def _facts(run: Document) -> tuple[Fact, ...]:
    facts = [Fact(name="Time", value=number(run, "time_s"), unit="s")]
    if number(run, "busbw_bytes_per_s") is not None:
        facts.append(Fact(name="Bus bandwidth", value=number(run, "busbw_bytes_per_s"), unit="bytes/s"))
    states = section(run, "wavefronts")
    memory = number(section(states, "memory"), "share_ppm")
    if memory is not None:
        facts.append(Fact(name="Wavefronts wait for memory", value=memory / _PER_MILLION, unit="share"))
    gpus = rows(run, "gpus")
    if gpus and number(gpus[0], "cus_used") is not None:
        used, total = number(gpus[0], "cus_used"), amount(gpus[0], "cus")
        facts.append(Fact(name="Compute units in use", value=used, unit="count", note=f"of {total:.0f} per GPU"))
    return tuple(facts)


def inside_section(run: Document) -> PageSection:
    """Return the section: states of wavefronts, compute units, parts of the chip, operations."""
    blocks: list[Block] = []
    states = _states(section(run, "wavefronts"))
    if states:
        blocks.append(Bars(title="Time of all wavefronts", unit="share", bars=states))
    units = _compute_units(rows(run, "cus"))
    if units is not None:
        blocks.append(units)
    kinds = _resource_kinds(rows(run, "resource_kinds"))
    if kinds is not None:
        blocks.append(kinds)
    operations = table_of_rows("Operations of the program, longest first", rows(run, "operations"))
    if operations is not None:
        blocks.append(operations)
    sentence = text(section(run, "bottleneck"), "sentence")
    answer = f"{sentence[:1].upper()}{sentence[1:]}." if sentence else "The run names no bottleneck."
    return PageSection(key="inside", question="Inside the GPU?", answer=answer, blocks=tuple(blocks))


def _states(states: Document) -> tuple[Bar, ...]:
    bars = []
    for key in states:
        name, colour = _STATES.get(key, (key, "other"))
        share = amount(section(states, key), "share_ppm") / _PER_MILLION
        if share > 0:
            bars.append((share, Bar(name=name, parts=(("", share, colour),))))
    return tuple(bar for _, bar in sorted(bars, key=lambda pair: -pair[0]))


def _compute_units(units: list[Document]) -> Bars | None:
    """Return the time of each compute unit's wavefronts by state."""
    bars = []
    for row in units:
        states = section(row, "wavefront_s")
        total = sum(amount(states, key) for key in states)
        occupied = amount(row, "occupied_s")
        if total > 0:
            parts = tuple(
                (_STATES.get(key, (key, "other"))[0], amount(states, key) / total * occupied,
                 _STATES.get(key, (key, "other"))[1])
                for key in states
            )  # fmt: skip
            bars.append(Bar(name=f"rank {text(row, 'rank')}, unit {text(row, 'cu')}", parts=parts))
    if not bars:
        return None
    note = "Length: time in which a workgroup occupies the unit. Parts: what its wavefronts do."
    return Bars(title="Compute units", unit="s", bars=tuple(bars), max_rows=8, note=note)


def _resource_kinds(kinds: list[Document]) -> Table | None:
    columns = (
        Head(name="part"), Head(name="units", unit="count"), Head(name="in use", unit="count"),
        Head(name="mean utilisation", unit="share"), Head(name="highest", unit="share"), Head(name="busiest"),
    )  # fmt: skip
    found = tuple(
        (text(row, "kind"), number(row, "count"), number(row, "used"), number(row, "mean_utilisation"),
         number(row, "max_utilisation"), text(row, "busiest"))
        for row in kinds
    )  # fmt: skip
    return (
        Table(title="Network on the chip, caches and memory channels", columns=columns, rows=found) if found else None
    )


def _links(run: Document) -> PageSection:
    links = sorted(rows(run, "links"), key=lambda row: -amount(row, "utilisation"))
    columns = (
        Head(name="link"), Head(name="of", unit="bytes/s"), Head(name="utilisation", unit="share"),
        Head(name="busiest lane", unit="share"), Head(name="lanes", unit="count"),
        Head(name="data", unit="bytes"),
        Head(name="control", unit="bytes"),
    )  # fmt: skip
    found = tuple(
        (text(row, "link"), number(row, "bytes_per_s"), number(row, "utilisation"), number(row, "max_lane_utilisation"),
         number(row, "lanes"), number(row, "data_bytes"), number(row, "control_bytes"))
        for row in links
    )  # fmt: skip
    answer = "The run uses no links."
    if links:
        share, rate = 100 * amount(links[0], "utilisation"), format_bandwidth(amount(links[0], "bytes_per_s"))
        answer = f"{text(links[0], 'link')} is the busiest: {share:.0f} % of {rate}."
        fabric = section(section(run, "traffic"), "fabric")
        control = number(fabric, "control_share_of_bytes")
        if control is not None:
            moved = format_bytes(amount(fabric, "data_bytes") + amount(fabric, "control_bytes"))
            answer += f" Of {moved} between the GPUs, {100 * control:.0f} % is control traffic."
    blocks = (Table(title="Links between the GPUs", columns=columns, rows=found),) if found else ()
    return PageSection(key="link", question="Which link?", answer=answer, blocks=blocks)
