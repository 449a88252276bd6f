"""``trine software``: profiles of training software, with the source of each number."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Any

from trine.cli.completions import software_profiles
from trine.cli.options import Json, argument
from trine.cli.output import show, show_table, write_json


def list_software(json: Json = None) -> None:
    """List the profiles of training software (for --software).

    Example: trine software list
    """
    from trine.software import known_software, load_software

    profiles = [load_software(name) for name in known_software()]
    rows = []
    for profile in profiles:
        rows.append(
            {
                "name": profile.name,
                "attention": profile.operators.attention,
                "cpu_us_per_kernel": profile.launch.cpu_us_per_kernel,
                "stages": profile.stages,
                "fitted": [name for name, _ in profile.fitted_factors()],
                "description": profile.description,
            }
        )
    keys = ("name", "attention", "cpu_us_per_kernel", "stages", "description")
    cells = []
    for row in rows:
        cells.append(tuple(row[key] for key in keys))
    show_table(
        "{:22} {:>9} {:>10} {:>9}  {}", ("software", "attention", "us/kernel", "stages", "description"), cells, json
    )
    write_json({"software": rows}, json, "software list")


def show_software(
    name: Annotated[str, argument("A profile (trine software list), or a file.", values=software_profiles)],
    json: Json = None,
) -> None:
    """Show a software profile: every number and its source.

    Example: trine software show nanotron-2024
    """
    from trine.software import load_software
    from trine.software.profile import software_file

    profile = load_software(name)
    show(f"{profile.name}: {profile.description}", json)
    data = profile.model_dump(exclude_unset=True)
    facts: dict[str, Any] = {key: data.pop(key) for key in ("name", "description", "sources") if key in data}
    for field, value in _lines("", data):
        show(f"  {field:32} {value}", json)
    if profile.sources:
        show("sources of the numbers", json)
    for field, text in profile.sources.items():
        show(f"  {field}: {text}", json)
    file = str(software_file(name))
    show(f"file: {file}", json)
    answer: dict[str, Any] = profile.model_dump(exclude_defaults=True)
    write_json({**facts, **answer, "file": file}, json, "software show")


def _lines(prefix: str, data: dict[str, Any]) -> Iterator[tuple[str, str]]:
    """Fields by their path; lists of costs line by line."""
    for key, value in data.items():
        path = f"{prefix}{key}"
        if isinstance(value, dict) and value:
            yield from _lines(f"{path}.", value)
        elif isinstance(value, list) and value and isinstance(value[0], dict):
            for item in value:
                cells = ", ".join(f"{name} {number}" for name, number in item.items() if name != "name")
                yield f"{path}.{item['name']}" if "name" in item else path, cells
        else:
            yield path, ", ".join(map(str, value)) if isinstance(value, list) else str(value)
