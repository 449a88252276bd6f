"""Commands ``compare``, ``size`` and ``support``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

from trine.cli.completions import clusters, models, software_profiles
from trine.cli.options import GRADIENT_WORDS, LOSS_WORDS, OUTPUT, SERVING, Brief, Details, Json, Option, argument
from trine.cli.output import drawn, end, show_answer, write_json
from trine.cli.parameters import Fields, Given
from trine.cli.progress import RowsLine
from trine.cli.serving import AnswerFiles, refuse_serving, size_served
from trine.common.observer import observing
from trine.decide.failures import Failures
from trine.errors import InputError
from trine.inference.serving_goal import ServingGoal

if TYPE_CHECKING:
    from trine.results.report import Report


def compare(
    a: Annotated[str, argument("Answer of train or collective, written with --json; or traces.", "A")],
    b: Annotated[
        str,
        argument("Another answer of the same command; or a measured run: a Kineto trace, or a folder of them.", "B"),
    ],
    plot: Annotated[str | None, Option("Draw the terms of both times; of two answers.", "FILE", OUTPUT)] = None,
    brief: Brief = False,
    details: Details = False,
    json: Json = None,
) -> None:
    """Explain the difference of two answers, or of a measured run and its reference.

    Example: trine compare tp2.json tp4.json
    """
    answer = _comparison(a, b)
    if plot is not None and not answer.pictures():
        raise InputError("--plot draws the terms of two answers; --report shows a measured run beside its reference")
    show_answer(answer, json, brief, details)
    write_json(answer, json, "compare")
    drawn(plot, answer)


def _comparison(a: str, b: str) -> Report:
    """Return the comparison of two answers, or of a measured run and its reference."""
    from trine.runs.comparison import compare_measured, is_measured

    if is_measured(a) or is_measured(b):
        return compare_measured(a, b)
    from trine.decide.compare import compare as compare_answers

    return compare_answers(a, b)


def size(
    model: Annotated[
        str, argument("Model such as model:llama-3-8b.", "MODEL", values=lambda: [f"model:{name}" for name in models()])
    ],
    failures: Given[Failures],
    goal: Annotated[Given[ServingGoal], Fields(without=("precision",))],
    tokens: Annotated[str | None, Option("Train on this many tokens, such as 1.4T.", "N")] = None,
    serve: Annotated[bool, Option("Size a served model in place of a training run.", panel=SERVING)] = False,
    requests_per_second: Annotated[float | None, Option("Answer N requests per second.", "N", SERVING)] = None,
    utilisation: Annotated[
        float | None, Option("Let arrivals use this share of the throughput [0.8].", "SHARE", SERVING)
    ] = None,
    days: Annotated[float | None, Option("Finish within N days.", "N")] = None,
    budget: Annotated[str | None, Option("Spend at most this, such as 2M$; needs --price.", "AMOUNT")] = None,
    price: Annotated[str | None, Option("Set dollars per GPU-hour, or a dated file of prices.", "USD|FILE")] = None,
    cluster: Annotated[
        list[str] | None, Option("Try only this machine type; repeat it for several.", "NAME", values=clusters)
    ] = None,
    global_batch: Annotated[int | None, Option("Set the samples per step [4 Mi tokens].", "N")] = None,
    batch_change: Annotated[
        float | None, Option("Let the global batch differ by this share, for other numbers of GPUs [0.25].", "SHARE")
    ] = None,
    max_gpus: Annotated[int | None, Option("Try at most N GPUs [16384].", "N")] = None,
    software: Annotated[
        str | None, Option("Choose the software profile: name or file.", "NAME", values=software_profiles)
    ] = None,
    gradient_dtype: Annotated[
        str | None, Option("Accumulate and reduce gradients in this dtype [profile's].", GRADIENT_WORDS)
    ] = None,
    loss: Annotated[str | None, Option("Choose the implementation of the loss [profile's].", LOSS_WORDS)] = None,
    precision: Annotated[str | None, Option("Cast the products of layers: fp8, mxfp8, nvfp4, ...", "RECIPE")] = None,
    plot: Annotated[
        str | None,
        Option("Draw days over GPUs of each machine type; with --serve, its GPUs and prices.", "FILE", OUTPUT),
    ] = None,
    brief: Brief = False,
    details: Details = False,
    json: Json = None,
) -> None:
    """Find the smallest number of GPUs per machine type that trains MODEL in time, or with --serve answers requests.

    Example: trine size model:llama-3-8b --tokens 300B --days 30 --price 2.5 --cluster dgx-h100
    """
    given = {
        "tokens": tokens, "days": days, "budget": budget, "price": price, "cluster": cluster or None,
        "global_batch": global_batch, "batch_change": batch_change, "max_gpus": max_gpus, "software": software,
        "gradient_dtype": gradient_dtype, "loss": loss, "precision": precision, "utilisation": utilisation,
    }  # fmt: skip
    options = {name: value for name, value in given.items() if value is not None}
    if serve:
        files = AnswerFiles(json=json, brief=brief, details=details, plot=plot)
        size_served(model, goal, {**options, **failures.values}, requests_per_second, files)
        return
    about_serving = {"requests_per_second": requests_per_second, "utilisation": utilisation, **goal.values}
    refuse_serving([name for name, value in about_serving.items() if value is not None])
    if tokens is None:
        raise InputError("training needs the number of tokens: --tokens N, such as 1.4T")
    _size_training(model, options, failures, AnswerFiles(json=json, brief=brief, details=details, plot=plot))


def _size_training(model: str, options: dict[str, Any], failures: Given[Failures], files: AnswerFiles) -> None:
    """Find the number of GPUs of a training run, print the answer, and write its files. options: as given."""
    from trine.decide.size import SizeInterrupted
    from trine.decide.size import size as size_run

    kinds = tuple(options.pop("cluster", ()))
    is_finished = True
    with RowsLine("machine types") as line, observing(on_stage=line.queue):
        try:
            answer = size_run(
                model, options.pop("tokens"), clusters=kinds, failures=failures.make(), progress=line.rows,
                on_machine=lambda machine: line.queue(machine.sentence), **options,
            )  # fmt: skip
        except SizeInterrupted as stop:
            answer, is_finished = stop.answer, False
    show_answer(answer, files.json, files.brief, files.details)
    write_json(answer, files.json, "size")
    drawn(files.plot, answer)
    end(is_finished)


def _known_things() -> list[str]:
    from trine.decide.support import support as supported

    return [each.name for each in supported().entries]


def support(
    name: Annotated[
        str | None, argument("Model, GPU, cluster, software profile or precision.", "NAME", values=_known_things)
    ] = None,
    details: Details = False,
    json: Json = None,
) -> None:
    """List known models, GPUs, clusters, software profiles and precisions, with their evidence; or show NAME.

    Example: trine support h100-sxm
    """
    from trine.decide.support import support as supported

    answer = supported(name)
    show_answer(answer, json, False, details)
    write_json(answer, json, "support")
