"""The closed loop with jumps equals a plain loop of single steps, if their time is linear in the context."""

from dataclasses import dataclass

import pytest

from trine.inference.engines import load_engine
from trine.inference.load_times import closed_form, closed_loop
from trine.inference.loop import REQUESTS, ClientLoad, ClosedLoop
from trine.inference.steps import Step


@dataclass(frozen=True)
class _Time:
    us: float


class LinearTimer:
    """Steps of 100 us, 2 us a decoding sequence, 0.001 us a cached token that it reads, and 0.1 us a prompt token."""

    stages = 1

    def round_us(self, step: Step) -> float:
        return self.time(step).us

    def time(self, step: Step) -> _Time:
        prompts = sum(chunk.new for chunk in step.chunks)
        return _Time(100 + step.decodes * (2 + 0.001 * step.context) + 0.1 * prompts)


def plain_loop(batching: str, load: ClientLoad) -> tuple[float, float, float]:
    """Return mean TTFT, TPOT and latency of the clients' requests, step by step."""
    timer, now, front_end_free, polls = LinearTimer(), 0.0, 0.0, load.poll_steps
    waiting: list[dict] = []
    coming: list[dict] = []
    running: list[dict] = []

    def send() -> None:
        nonlocal front_end_free
        front_end_free = max(front_end_free, now) + load.tokenise_us
        coming.append({"start": now, "ready": front_end_free, "left": load.prompt})

    for _ in range(load.clients):
        send()
    done: list[tuple[float, float, float]] = []
    while len(done) < 3 * load.clients:
        is_idle = not running and not waiting
        if is_idle:
            now = max(now, coming[0]["ready"])
        if is_idle or polls >= load.poll_steps:
            polls = 0
            while coming and coming[0]["ready"] <= now:
                waiting.append(coming.pop(0))
        decodes = len(running) if batching != "prefill-first" else 0
        budget = load.budget - decodes
        chunks, complete = [], []
        while waiting and budget > 0 and len(running) + len(complete) < load.running:
            new = min(waiting[0]["left"], budget)
            if batching == "whole-prompts" and new < waiting[0]["left"]:
                if chunks:
                    break
                new = waiting[0]["left"]
            chunks.append(new)
            waiting[0]["left"] -= new
            budget -= new
            if waiting[0]["left"]:
                break
            complete.append(waiting.pop(0))
        if not chunks:
            decodes = len(running)
        context = sum(request["cached"] for request in running) if decodes else 0.0
        polls = load.poll_steps if chunks else polls + 1
        now += 100 + 2 * decodes + 0.001 * context + 0.1 * sum(chunks)
        for request in list(running) if decodes else []:
            request["cached"] += 1
            request["made"] += 1
            if request["made"] == load.output:
                running.remove(request)
                done.append((request["first"] - request["start"], now - request["start"], 0.0))
                send()
        for request in complete:
            running.append({**request, "first": now, "made": 1, "cached": load.prompt})
    assert isinstance(timer, LinearTimer)
    first, later = done[: load.clients], done[load.clients :]

    def mean(place: int) -> float:
        halves = [sum(each[place] for each in wave) / len(wave) for wave in (first, later)]
        return (halves[0] + (REQUESTS - 1) * halves[1]) / REQUESTS

    ttft, latency = mean(0), mean(1)
    return ttft, (latency - ttft) / (load.output - 1), latency


@pytest.mark.parametrize("engine", ["vllm", "sglang", "trtllm"])
@pytest.mark.parametrize(
    ("clients", "prompt", "output", "budget"),
    [(1, 100, 10, 64), (4, 100, 10, 1000), (7, 300, 50, 512), (16, 64, 20, 128), (5, 1000, 33, 256)],
)
@pytest.mark.parametrize(("tokenise_us", "poll_steps"), [(0.0, 1), (130.0, 1), (0.0, 7), (75.0, 10)])
def test_jumps_change_nothing(engine, clients, prompt, output, budget, tokenise_us, poll_steps):
    profile = load_engine(engine)
    load = ClientLoad(
        clients=clients, prompt=prompt, cached=0, output=output, budget=budget, running=clients,
        tokenise_us=tokenise_us, poll_steps=poll_steps,
    )  # fmt: skip
    found = ClosedLoop(LinearTimer(), profile, load).run()
    ttft, tpot, latency = plain_loop(profile.batching, load)
    assert found.ttft_us == pytest.approx(ttft, rel=1e-9)
    assert found.tpot_us == pytest.approx(tpot, rel=1e-9)
    assert found.end_to_end_us == pytest.approx(latency, rel=1e-9)


def test_a_scheduler_that_looks_rarely_delays_new_requests_alone():
    """One client: its request waits for the front end; a scheduler without work looks at once."""
    load = ClientLoad(clients=1, prompt=100, cached=0, output=10, budget=100, running=1, tokenise_us=50, poll_steps=9)
    found = ClosedLoop(LinearTimer(), load_engine("sglang"), load).run()
    assert found.ttft_us == pytest.approx(50 + 100 + 0.1 * 100)


def test_lengths_that_differ_keep_the_mean_latency_near():
    profile = load_engine("vllm")
    equal = ClientLoad(clients=16, prompt=400, cached=0, output=100, budget=2048, running=16)
    varied = ClientLoad(clients=16, prompt=400, cached=0, output=100, budget=2048, running=16, spread=0.2)
    a, b = (ClosedLoop(LinearTimer(), profile, load).run() for load in (equal, varied))
    assert b.ttft_us < a.ttft_us  # clients that are out of step wait less for each other's prompts
    assert b.end_to_end_us == pytest.approx(a.end_to_end_us, rel=0.05)


def test_the_closed_form_is_the_loop_of_prompts_before_decodes():
    load = ClientLoad(clients=50, prompt=1000, cached=0, output=400, budget=1000, running=50)
    loop, form = ClosedLoop(LinearTimer(), load_engine("sglang"), load).run(), closed_form(LinearTimer(), load)
    assert form.ttft_us == pytest.approx(loop.ttft_us, rel=1e-9)
    assert form.end_to_end_us == pytest.approx(loop.end_to_end_us, rel=2e-3)
    assert form.tpot_us == pytest.approx(loop.tpot_us, rel=2e-3)


def test_loops_of_very_many_steps_take_the_closed_form():
    load = ClientLoad(clients=2000, prompt=100_000, cached=0, output=100, budget=2048, running=2000)
    assert closed_loop(LinearTimer(), load_engine("vllm"), load) == closed_form(LinearTimer(), load)


def test_other_loads_run_step_by_step():
    profile = load_engine("vllm")
    load = ClientLoad(clients=8, prompt=600, cached=0, output=60, budget=2048, running=8)
    found = closed_loop(LinearTimer(), profile, load)
    assert found == ClosedLoop(LinearTimer(), profile, load).run()
    assert found != closed_form(LinearTimer(), load)
