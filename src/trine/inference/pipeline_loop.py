"""A closed loop through a pipeline: one micro-batch of requests for each stage, all of them in flight.

Each micro-batch has its own scheduler, as in :mod:`trine.inference.loop`. Its step passes the stages one after the
other, and its next step starts when the last stage has ended. A stage runs one micro-batch at a time, in the order in
which they reach the first stage. Unequal steps of the micro-batches leave bubbles.
"""

from __future__ import annotations

from statistics import fmean

from trine.inference.engines import EngineProfile
from trine.inference.loop import ClientLoad, ClosedLoop, LoopTimes, PlannedStep
from trine.inference.steps import StepTimer


class PipelineLoop:
    """One run of equal loads, one for each micro-batch, through the stages of a pipeline."""

    def __init__(self, timer: StepTimer, engine: EngineProfile, load: ClientLoad) -> None:
        """load: of one micro-batch."""
        self._timer = timer
        stages = timer.stages
        self._free_us = [0.0] * stages
        self._lanes = []
        for number in range(stages):
            self._lanes.append(ClosedLoop(timer, engine, load, first_number=number * load.clients))

    def run(self) -> LoopTimes:
        """Return the means over the measured waves of all micro-batches."""
        while not all(lane.is_measured for lane in self._lanes):
            if all(lane.decodes_only for lane in self._lanes):
                self._decode_together()
            lane = min(self._lanes, key=lambda each: each.now_us)
            planned = lane.plan(most=1)
            lane.end(planned, self._pass_stages(planned, lane.now_us))
        times = [lane.times() for lane in self._lanes]
        return LoopTimes(
            ttft_us=fmean(each.ttft_us for each in times),
            tpot_us=fmean(each.tpot_us for each in times),
            end_to_end_us=fmean(each.end_to_end_us for each in times),
        )

    def _pass_stages(self, planned: PlannedStep, ready_us: float) -> float:
        """Let a step that is ready pass all stages; return when the last one ends."""
        now_us = ready_us
        for stage, stage_us in enumerate(self._timer.stages_us(planned.step)):
            now_us = max(now_us, self._free_us[stage]) + stage_us
            self._free_us[stage] = now_us
        return now_us

    def _decode_together(self) -> None:
        """Jump over rounds in which every micro-batch decodes and no request ends; the next rounds run in full.

        A round takes as long as the slowest stage serves all micro-batches, or as the slowest micro-batch passes all
        stages.
        """
        rounds = min(lane.decodes_left for lane in self._lanes) - 1
        if rounds < 1:
            return
        planned = [lane.plan(most=rounds) for lane in self._lanes]
        stages = [self._timer.stages_us(each.step) for each in planned]
        of_stages = [sum(times) for times in zip(*stages, strict=True)]
        of_lanes = [sum(times) for times in stages]
        passed_us = rounds * max(*of_stages, *of_lanes)
        for lane, each in zip(self._lanes, planned, strict=True):
            lane.end(each, lane.now_us + passed_us)
        self._free_us = [free_us + passed_us for free_us in self._free_us]
