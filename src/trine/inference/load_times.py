"""Times of a closed loop: step by step, also through a pipeline, or in closed form if it has very many steps."""

from __future__ import annotations

import math

from trine.inference.engines import EngineProfile
from trine.inference.loop import WAVES, ClientLoad, ClosedLoop, LoopTimes
from trine.inference.pipeline_loop import PipelineLoop
from trine.inference.steps import PromptChunk, Step, StepTimer

#: Loops of more steps take the closed form.
_MAX_STEPS = 10_000


def closed_loop(timer: StepTimer, engine: EngineProfile, load: ClientLoad) -> LoopTimes:
    """Return the means of a load, step by step; of very many steps, by :func:`closed_form`.

    load: of one attention replica, or of one micro-batch of a pipeline, whose others have as many clients.
    """
    steps = WAVES * load.clients * (load.prompt / load.budget + (2 if load.spread else 0))
    if steps * timer.stages > _MAX_STEPS:
        return closed_form(timer, load)
    if timer.stages > 1:
        return PipelineLoop(timer, engine, load).run()
    return ClosedLoop(timer, engine, load).run()


def closed_form(timer: StepTimer, load: ClientLoad) -> LoopTimes:
    """Return the means of clients in step: all prompts one after the other, then all decode steps.

    A prompt waits for half of the others on average; a request lasts for all prompts and its own decode steps.
    """
    chunks = [
        PromptChunk(min(load.budget, load.prompt - done), load.cached + done)
        for done in range(0, load.prompt, load.budget)
    ]
    prompt_us = sum(timer.time(Step(chunks=(chunk,))).us for chunk in chunks)
    steps = math.ceil((load.output - 1) / load.tokens_per_step)
    context = load.cached + load.prompt + load.output / 2
    decode_us = steps * timer.round_us(Step(load.clients, context, drafts=load.drafts))
    ttft_us = (load.clients + 1) / 2 * prompt_us
    last_us = load.clients * prompt_us + decode_us
    return LoopTimes(ttft_us, (last_us - ttft_us) / max(load.output - 1, 1), last_us)
