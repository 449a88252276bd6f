"""The longest context of a model, and the warning about requests beyond it."""

from __future__ import annotations


class ContextWarning(UserWarning):
    """A step or request has more tokens than the longest context of the model."""


def context_warning(model: str, max_context_tokens: int, tokens: float) -> str:
    """Return a warning if a request of ``tokens`` tokens is beyond the model's longest context, else an empty text.

    max_context_tokens: 0 if the model states none. Engines derive their limit from it (vLLM: ``max_model_len``) and
    refuse longer requests.
    """
    if not max_context_tokens or tokens <= max_context_tokens:
        return ""
    return (
        f"{tokens:,.0f} tokens are more than the longest context of {model}, {max_context_tokens:,} tokens: engines "
        "refuse such a request unless the model's config.json has a longer one"
    )
