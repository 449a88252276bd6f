"""The training step of a user's function, which returns a step, a model, or a model and its inputs."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from trine.common.arguments import check_whole
from trine.errors import InputError, nearest

#: Forms of AdamW's step: one fused kernel for each group of weights (the default of transformers' Trainer), or lists.
OPTIMIZERS = ("fused", "foreach")
#: Most samples, and most tokens of a sample.
_MOST = 2**24
#: Tokens of a sample, unless the model has fewer positions.
_SEQUENCE = 2048


@dataclass(frozen=True, kw_only=True, slots=True)
class ModelInputs:
    """Sizes of the step that trine writes for a model.

    batch: samples. sequence: tokens of a sample; None: 2,048, or the model's positions if they are fewer. optimizer:
    form of AdamW's step (:data:`OPTIMIZERS`). Raises InputError for values out of range.
    """

    batch: int = 1
    sequence: int | None = None
    optimizer: str = "fused"

    def __post_init__(self) -> None:
        check_whole("batch", self.batch, 1, _MOST)
        if self.sequence is not None:
            check_whole("sequence", self.sequence, 2, _MOST)
        if self.optimizer not in OPTIMIZERS:
            raise InputError(f"unknown step {self.optimizer!r}{nearest(self.optimizer, OPTIMIZERS)}", field="optimizer")


def model_inputs(batch: int | None, sequence: int | None, optimizer: str | None) -> ModelInputs | None:
    """Return the sizes, with defaults in place of None; None without any size. Raises InputError as ModelInputs."""
    if batch is None and sequence is None and optimizer is None:
        return None
    return ModelInputs(batch=1 if batch is None else batch, sequence=sequence, optimizer=optimizer or OPTIMIZERS[0])


def step_of(
    function: Callable[[], object], inputs: ModelInputs | None = None, device: str = "meta"
) -> Callable[[], Any]:
    """Call ``function`` and return the step to record.

    It may return a callable step, a transformers model, or a model and its inputs (a dict or a tuple). trine makes
    token ids and labels for a transformers model, and runs forward pass, backward pass and AdamW of a model. A function
    that returns no object, or values (a loss), performed a step itself, and is the step.

    inputs: sizes for a model. device: where to make its inputs.
    Raises InputError for any other result, a model whose inputs trine cannot make, and sizes without such a model.
    """
    import torch

    result = function()
    model, arguments = result if isinstance(result, tuple) and len(result) == 2 else (result, None)
    if isinstance(model, torch.nn.Module):
        sizes = inputs or ModelInputs()
        if arguments is None:
            arguments = _arguments(model, sizes, device)
        elif not isinstance(arguments, Mapping | tuple | list | torch.Tensor):
            kind = type(arguments).__name__
            raise InputError(f"returns a model and a {kind}: the model's inputs must be a dict or a tuple of tensors")
        elif inputs is not None and (inputs.batch, inputs.sequence) != (1, None):
            raise InputError(
                "batch and sequence have no effect: the function returns the model's inputs", field="batch"
            )
        return _training_step(model, arguments, sizes.optimizer)
    if inputs is not None:
        text = "has no effect: the function returns a step, not a model"
        raise InputError(text, field="batch, sequence, optimizer")
    if callable(result):
        return result
    if result is None or isinstance(result, torch.Tensor | int | float | str | tuple | list | Mapping):
        return function
    raise InputError(
        f"returns a {type(result).__name__}: it must return a step (a function), a model, or (model, inputs), or "
        "perform a step and return no object",
        field=getattr(function, "__name__", "function"),
    )


def _arguments(model: Any, sizes: ModelInputs, device: str) -> dict[str, Any]:
    """Return inputs for a model of transformers that reads token ids and returns a loss."""
    import torch

    name = type(model).__name__
    config = getattr(model, "config", None)
    parameters = inspect.signature(model.forward).parameters
    if config is None or not {"input_ids", "labels"}.issubset(parameters):
        raise InputError(
            f"{name} is no transformers model with token ids and a loss (such as AutoModelForCausalLM): return "
            "(model, inputs), with inputs a dict of arguments or a tuple"
        )
    text = config.get_text_config()
    positions = getattr(text, "max_position_embeddings", None) or _SEQUENCE
    batch, sequence = sizes.batch, sizes.sequence or min(positions, _SEQUENCE)
    ids = torch.zeros((batch, sequence), dtype=torch.long, device=device)
    per_sample = "ForSequenceClassification" in name
    arguments: dict[str, Any] = {"input_ids": ids, "labels": ids[:, 0] if per_sample else ids}
    if "use_cache" in parameters:
        arguments["use_cache"] = False
    return arguments


def _training_step(model: Any, arguments: object, optimizer: str) -> Callable[[], None]:
    """Return a function that runs forward, backward and AdamW on ``model``."""
    import torch

    if isinstance(arguments, torch.Tensor):
        arguments = (arguments,)
    model.train()
    weights = [weight for weight in model.parameters() if weight.requires_grad]
    adam = torch.optim.AdamW(weights, **{optimizer: True})

    def step() -> None:
        adam.zero_grad()
        output = model(**arguments) if isinstance(arguments, Mapping) else model(*arguments)  # type: ignore[misc]
        _loss(output, type(model).__name__).backward()
        adam.step()

    return step


def _loss(output: Any, name: str) -> Any:
    """Return the loss in a model's output: its ``loss``, or the output itself if it is one number."""
    loss = output.get("loss") if isinstance(output, Mapping) else getattr(output, "loss", None)
    if loss is None and getattr(output, "shape", None) == ():
        loss = output
    if loss is None:
        raise InputError(f"{name} returns no loss: return a model whose output is a number or has a loss, or a step")
    return loss
