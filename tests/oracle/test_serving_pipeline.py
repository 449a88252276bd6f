"""Does a pipeline of micro-batches run as single steps through single stages, losing time to unequal steps only?"""

from dataclasses import dataclass

import pytest

from trine.inference.engines import load_engine
from trine.inference.loop import ClientLoad, ClosedLoop
from trine.inference.pipeline_loop import PipelineLoop
from trine.inference.steps import Step

ENGINES = {"mixed": "vllm", "prefill-first": "sglang"}


@dataclass(frozen=True)
class _Time:
    us: float


class StagedTimer:
    """Steps of 100 us, 2 us a decoding sequence and 0.1 us a prompt token, shared out to the stages by weight."""

    def __init__(self, *weights: float) -> None:
        self._weights, self.stages = weights, len(weights)

    def time(self, step: Step) -> _Time:
        return _Time(100 + 2 * step.decodes + 0.1 * sum(chunk.new for chunk in step.chunks))

    def stages_us(self, step: Step) -> tuple[float, ...]:
        return tuple(self.time(step).us * weight / sum(self._weights) for weight in self._weights)


class SingleSteps(PipelineLoop):
    """The same loop without jumps."""

    def _decode_together(self) -> None:
        """Jump over nothing."""


def load_of(clients: int, spread: float = 0.0) -> ClientLoad:
    return ClientLoad(clients, prompt=600, cached=0, output=40, budget=512, running=clients, spread=spread)


@pytest.mark.parametrize("engine", ENGINES.values())
@pytest.mark.parametrize("weights", [(1, 1), (1, 1, 1, 1), (3, 2, 3)])
@pytest.mark.parametrize("spread", [0.0, 0.2])
def test_jumps_equal_single_steps(engine, weights, spread):
    """Times of decode steps do not depend on the context here, so that a jump is exact but for its first round."""
    timer, profile = StagedTimer(*weights), load_engine(engine)
    jumped = PipelineLoop(timer, profile, load_of(4, spread)).run()
    single = SingleSteps(timer, profile, load_of(4, spread)).run()
    for name in ("ttft_us", "tpot_us", "end_to_end_us"):
        assert getattr(jumped, name) == pytest.approx(getattr(single, name), rel=2e-3), name


@pytest.mark.parametrize("engine", ENGINES.values())
@pytest.mark.parametrize("stages", [2, 4])
def test_a_pipeline_is_never_faster_than_micro_batches_that_never_wait(engine, stages):
    timer, profile = StagedTimer(*[1.0] * stages), load_engine(engine)
    for spread in (0.0, 0.2):
        alone = ClosedLoop(timer, profile, load_of(4, spread)).run()
        piped = PipelineLoop(timer, profile, load_of(4, spread)).run()
        assert piped.end_to_end_us >= alone.end_to_end_us * (1 - 5e-3)


def test_alike_decode_steps_leave_no_bubble():
    """Closed form: with equal stages, each micro-batch steps as if it were alone; TPOT is the step."""
    timer, profile = StagedTimer(1, 1), load_engine("vllm")
    load = ClientLoad(1, prompt=1, cached=0, output=2000, budget=512, running=1)
    assert PipelineLoop(timer, profile, load).run().tpot_us == pytest.approx(102, rel=1e-3)


def test_the_slowest_stage_decides():
    """Closed form: two micro-batches pass a stage of 3/4 of a step each; a round takes 1.5 steps."""
    timer, profile = StagedTimer(3, 1), load_engine("vllm")
    load = ClientLoad(1, prompt=1, cached=0, output=2000, budget=512, running=1)
    assert PipelineLoop(timer, profile, load).run().tpot_us == pytest.approx(1.5 * 102, rel=1e-3)
