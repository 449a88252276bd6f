"""Launch commands of inference engines: the options of a layout, from ``presets/serving/launch_commands.yaml``."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import TYPE_CHECKING, Any, Literal

from trine.common.schema import Field, Spec
from trine.common.spec import dump_yaml, read_spec
from trine.errors import InputError, nearest
from trine.inference.job import ServingLayout
from trine.inference.precision import SERVING, served_precisions

if TYPE_CHECKING:
    from trine.inference.serving_points import ServingPoint

Share = Literal["any", "all-or-none"]


class LaunchOption(Spec):
    """An option of an engine. See the head of the file for all keys."""

    field: str
    name: str
    values: dict[str, str | int | bool] = Field(default_factory=dict)
    always: bool = False

    def value(self, given: Any) -> Any:
        """Return the engine's value, or None if the option is not written."""
        if self.values:
            return self.values.get(str(given))
        return given if given and (self.always or given != 1) else None


class LaunchRules(Spec):
    """Options of one engine, and the layouts that they can express."""

    command: str
    format: Literal["flags", "yaml"]
    experts: Share
    attention_dp: Share
    rows: list[LaunchOption]
    quantization: dict[str, str] = Field(default_factory=dict)
    source: str

    def can_launch(self, layout: ServingLayout) -> bool:
        """Return whether the engine has options for a layout."""
        stage = layout.stage_gpus
        has_experts = self.experts == "any" or layout.ep in (1, stage)
        return has_experts and (self.attention_dp == "any" or layout.attention_dp in (1, stage))


class _Engines(Spec):
    engines: dict[str, LaunchRules]


@cache
def known_launchers() -> Mapping[str, LaunchRules]:
    """Return the rules of all engines by name."""
    return read_spec(SERVING / "launch_commands.yaml", _Engines).engines


def launch_rules(engine: str) -> LaunchRules:
    """Return the rules of an engine. Raises InputError for an unknown one."""
    known = known_launchers()
    if engine not in known:
        message = f"with --serve, one of {', '.join(known)}; got {engine[:40]!r}{nearest(engine[:80], known)}"
        raise InputError(message, field="emit")
    return known[engine]


def launch_fields(point: ServingPoint, rules: LaunchRules) -> dict[str, Any]:
    """Return the values that options are about.

    tokens: of a request. requests: in flight in one copy; replica_requests: in one attention replica of it;
    step_requests: in one step, of one stage. nodes: of a copy. quantization: of 16-bit weights at loading, or None.
    """
    answer, layout = point.answer, point.answer.job.layout
    requests = answer.job.concurrency or 1
    is_quantised = not point.is_stored_precision
    return {
        "tp": layout.tp, "pp": layout.pp, "ep": layout.ep, "attention_dp": layout.attention_dp,
        "stage_gpus": layout.stage_gpus, "has_divided_experts": layout.ep > 1,
        "has_attention_dp": layout.attention_dp > 1, "kv_precision": answer.kv_precision,
        "quantization": rules.quantization.get(answer.precision) if is_quantised else None,
        "requests": requests, "replica_requests": requests // layout.attention_dp,
        "step_requests": requests // (layout.attention_dp * layout.pp),
        "tokens": answer.job.input_tokens + answer.job.output_tokens, "nodes": point.copy_nodes,
    }  # fmt: skip


def launch_command(point: ServingPoint) -> str:
    """Return the command that starts one copy of the model, below comments on copies, nodes and the checkpoint."""
    rules = launch_rules(point.answer.job.engine)
    fields = launch_fields(point, rules)
    written = {row.name: row.value(fields[row.field]) for row in rules.rows}
    options = {name: value for name, value in written.items() if value is not None}
    body = _command(rules.command, options) if rules.format == "flags" else _file_and_command(rules.command, options)
    return "\n".join([*_comments(point, fields), body])


def _comments(point: ServingPoint, fields: Mapping[str, Any]) -> list[str]:
    answer = point.answer
    first = f"# {answer.model} ({answer.precision}) with {answer.engine}: {answer.gpus} GPUs a copy"
    found = [first + (f", start {point.copies} copies behind a router" if point.copies > 1 else "")]
    title = served_precisions()[answer.precision].title
    if not point.is_stored_precision and fields["quantization"] is None:
        found.append(f"# MODEL: a checkpoint in {answer.precision} ({title})")
    else:
        found.append("# MODEL: path or name of the checkpoint")
    if point.copy_nodes > 1:
        found.append(f"# a copy spans {point.copy_nodes} nodes: add rank and address of each node")
    return found


def _command(command: str, options: Mapping[str, Any]) -> str:
    parts = [name if value is True else f"{name} {value}" for name, value in options.items()]
    return " \\\n  ".join([command, *parts])


def _file_and_command(command: str, options: Mapping[str, Any]) -> str:
    """Return shell lines that write the options to a file and start the server."""
    content: dict[str, Any] = {}
    for name, value in options.items():
        section, _, key = name.rpartition(".")
        (content.setdefault(section, {}) if section else content)[key] = value
    return f"cat > serving.yaml <<'END'\n{dump_yaml(content).rstrip()}\nEND\n{command}"
