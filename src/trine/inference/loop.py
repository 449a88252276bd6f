"""A closed loop: clients that each keep one request in flight, and an engine that batches them step by step.

The loop follows the engine's scheduler step by step, but jumps over decode steps during which no request starts or
ends. All clients start at once, as benchmarks do. Means are over all requests of a client: the first wave, and further
ones like those measured here.
"""

from __future__ import annotations

import heapq
import math
from collections import deque
from dataclasses import dataclass
from statistics import fmean

from trine.inference.engines import EngineProfile
from trine.inference.steps import PromptChunk, Step, StepTimer

#: Waves of requests that run: the first, and those that stand for all later ones.
WAVES = 3
#: Requests of a client: benchmarks send ten prompts per client (InferenceX, benchmark_lib.sh).
REQUESTS = 10


@dataclass(frozen=True, slots=True)
class ClientLoad:
    """Requests of one replica. prompt: tokens that are not in the prefix cache; cached: those that are.

    budget, running: limits of a step. tokens_per_step: of one sequence, above 1 with speculation; drafts: of a step.
    spread: largest deviation of a length from the mean, as a share of it; lengths are uniform between. tokenise_us:
    time of a whole prompt in the front end, which handles one prompt after the other; 0 for prompts that it handles
    together. poll_steps: decode steps between two looks of the scheduler at new requests.
    """

    clients: int
    prompt: int
    cached: int
    output: int
    budget: int
    running: int
    tokens_per_step: float = 1.0
    drafts: int = 0
    spread: float = 0.0
    tokenise_us: float = 0.0
    poll_steps: int = 1


@dataclass(frozen=True, slots=True)
class LoopTimes:
    """Means over requests in microseconds: time to first token, per further token, and end to end."""

    ttft_us: float
    tpot_us: float
    end_to_end_us: float


@dataclass(frozen=True, slots=True)
class _Finished:
    """A finished request in microseconds: to its first token, and to its last; number of its tokens."""

    first_us: float
    last_us: float
    tokens: int

    @property
    def tpot_us(self) -> float:
        """Time per token after the first."""
        return (self.last_us - self.first_us) / max(self.tokens - 1, 1)


@dataclass(slots=True)
class _Request:
    number: int
    start_us: float
    ready_us: float
    left: int
    prompt: int
    output: int
    done: int = 0


@dataclass(frozen=True, slots=True)
class PlannedStep:
    """The next step of a scheduler, and how often it repeats.

    decoded: decode steps that the running requests make; 0 for prompts alone. complete: requests whose prompt ends.
    """

    step: Step
    decoded: int
    complete: tuple[_Request, ...] = ()

    @property
    def repeats(self) -> int:
        """How often the step runs before a request starts or ends."""
        return max(self.decoded, 1)


class ClosedLoop:
    """One run of a load through an engine's scheduler.

    first_number: of its first request, which decides the lengths of requests with a spread.
    """

    def __init__(self, timer: StepTimer, engine: EngineProfile, load: ClientLoad, first_number: int = 0) -> None:
        self._timer, self._load, self._batching = timer, load, engine.batching
        self._now_us = 0.0
        self._front_end_free_us = 0.0
        self._steps = 0
        self._unpolled_steps = load.poll_steps
        self._coming: deque[_Request] = deque()
        self._number = first_number
        self._waiting: deque[_Request] = deque()
        self._decoding: list[tuple[int, int, _Request, float]] = []
        self._context = 0
        self._finished: list[_Finished] = []
        for _ in range(load.clients):
            self._send()

    def run(self) -> LoopTimes:
        """Return the means of the measured waves."""
        while not self.is_measured:
            planned = self.plan()
            self.end(planned, self._now_us + self._timer.time(planned.step).us * planned.repeats)
        return self.times()

    @property
    def now_us(self) -> float:
        """The end of the last step."""
        return self._now_us

    @property
    def is_measured(self) -> bool:
        """Whether all waves have ended."""
        return len(self._finished) >= WAVES * self._load.clients

    @property
    def decodes_only(self) -> bool:
        """Whether the next step has no prompts."""
        has_room = len(self._decoding) < self._load.running and self._budget_left() > 0
        return bool(self._decoding) and not self._coming and not (self._waiting and has_room)

    @property
    def decodes_left(self) -> int:
        """Decode steps until a request ends."""
        return max(1, self._decoding[0][0] - self._steps)

    def times(self) -> LoopTimes:
        """Return the means of the measured waves."""
        clients = self._load.clients
        first, later = self._finished[:clients], self._finished[clients:]
        return LoopTimes(
            ttft_us=_mean([request.first_us for request in first], [request.first_us for request in later]),
            tpot_us=_mean([request.tpot_us for request in first], [request.tpot_us for request in later]),
            end_to_end_us=_mean([request.last_us for request in first], [request.last_us for request in later]),
        )

    def _send(self) -> None:
        """Let a client send its next request."""
        spread = self._load.spread
        prompt = max(1, round(self._load.prompt * (1 + spread * (2 * _van_der_corput(self._number, 2) - 1))))
        output = max(1, round(self._load.output * (1 + spread * (2 * _van_der_corput(self._number, 3) - 1))))
        self._number += 1
        share = (self._load.cached + prompt) / (self._load.cached + self._load.prompt)
        self._front_end_free_us = max(self._front_end_free_us, self._now_us) + share * self._load.tokenise_us
        self._coming.append(_Request(self._number, self._now_us, self._front_end_free_us, prompt, prompt, output))

    def _receive(self) -> None:
        """Let the scheduler look at new requests if it is time, or if it has nothing to do until the next one comes."""
        is_idle = not self._decoding and not self._waiting
        if is_idle and self._coming:
            self._now_us = max(self._now_us, self._coming[0].ready_us)
        elif self._unpolled_steps < self._load.poll_steps:
            return
        self._unpolled_steps = 0
        while self._coming and self._coming[0].ready_us <= self._now_us:
            self._waiting.append(self._coming.popleft())

    def plan(self, most: int | None = None) -> PlannedStep:
        """Return the next step: with prompts, or the decode steps until a request ends, at most ``most`` of them."""
        self._receive()
        chunks, requests = self._chunks()
        decodes = len(self._decoding)
        if chunks:
            mixes = self._batching != "prefill-first"
            return PlannedStep(self._step(decodes if mixes else 0, chunks, 0), 1 if mixes else 0, tuple(requests))
        count = self.decodes_left
        if most is not None:
            count = min(count, most)
        if self._coming:
            count = min(count, max(1, self._load.poll_steps - self._unpolled_steps))
        return PlannedStep(self._step(decodes, (), count), count)

    def end(self, planned: PlannedStep, now_us: float) -> None:
        """Let the planned step end at ``now_us``."""
        if planned.step.chunks:
            self._unpolled_steps = self._load.poll_steps  # a scheduler looks at new requests after each prefill
        else:
            self._unpolled_steps = (self._unpolled_steps + planned.decoded - 1) % self._load.poll_steps + 1
        self._pass(planned.decoded, now_us)
        for request in planned.complete:
            self._first_token(request)

    def _step(self, decodes: int, chunks: tuple[PromptChunk, ...], ahead: int) -> Step:
        """Return a step at the mean context over the next ``ahead`` steps."""
        context = 0.0
        if decodes:
            context = self._context / decodes + max(ahead - 1, 0) / 2 * self._load.tokens_per_step
        return Step(decodes, context, chunks, self._load.drafts)

    def _pass(self, count: int, now_us: float) -> None:
        """Let ``count`` decode steps pass, and end the requests that have all their tokens."""
        self._now_us = now_us
        self._steps += count
        self._context += round(count * len(self._decoding) * self._load.tokens_per_step)
        while self._decoding and self._decoding[0][0] <= self._steps and count:
            _, _, request, first_us = heapq.heappop(self._decoding)
            self._context -= self._load.cached + request.prompt + request.output - 1
            self._finished.append(
                _Finished(first_us - request.start_us, self._now_us - request.start_us, request.output)
            )
            self._send()
        self._context = max(self._context, 0)

    def _first_token(self, request: _Request) -> None:
        """Move a prompt whose last chunk ran to the decoding requests."""
        if request.output == 1:
            waited_us = self._now_us - request.start_us
            self._finished.append(_Finished(waited_us, waited_us, 1))
            self._send()
            return
        steps = math.ceil((request.output - 1) / self._load.tokens_per_step)
        self._context += self._load.cached + request.prompt
        heapq.heappush(self._decoding, (self._steps + steps, request.number, request, self._now_us))

    def _budget_left(self) -> int:
        """Return the tokens that prompts may take in a step beside the tokens of the decoding requests.

        An engine without chunks of prompts is configured so that one prompt fits beside all decodes.
        """
        if self._batching == "prefill-first":
            return self._load.budget
        left = self._load.budget - len(self._decoding) * (1 + self._load.drafts)
        return max(left, 1) if self._batching == "whole-prompts" else left

    def _chunks(self) -> tuple[tuple[PromptChunk, ...], list[_Request]]:
        """Return the prompt chunks of the next step, and the requests whose prompt they complete."""
        free = self._load.running - len(self._decoding)
        budget = self._budget_left()
        chunks: list[PromptChunk] = []
        complete: list[_Request] = []
        while self._waiting and free > 0 and budget > 0:
            request = self._waiting[0]
            new = min(request.left, budget)
            if self._batching == "whole-prompts" and new < request.left:
                if chunks:
                    break
                new = request.left
            chunks.append(PromptChunk(new, self._load.cached + request.done))
            request.left -= new
            request.done += new
            budget -= new
            if request.left:
                break
            complete.append(self._waiting.popleft())
            free -= 1
        return tuple(chunks), complete


def _mean(first: list[float], later: list[float]) -> float:
    """Return the mean over the requests of a client: one of the first wave, the others later."""
    return (fmean(first) + (REQUESTS - 1) * fmean(later)) / REQUESTS


def _van_der_corput(number: int, base: int) -> float:
    """Return a low-discrepancy number in (0, 1): the digits of ``number`` behind the point, in reverse."""
    number += 1
    value, weight = 0.0, 1.0
    while number:
        weight /= base
        value += weight * (number % base)
        number //= base
    return value
