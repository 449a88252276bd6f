"""Does a power cap lengthen what compute limits, by the clock at which power equals the cap, and nothing else?"""

import itertools

import pytest

import trine
from trine.cluster import load_gpu
from trine.compute import make_compute
from trine.compute.clock import StepClock, power_cap
from trine.compute.power import Bounds, StepLoad, load_of
from trine.compute.power_curve import curve_of, power_curves
from trine.errors import InputError
from trine.workload.readers import load_bundled

JOB = "model:llama-3.2-1b,sequence=2048"


def step(**options):
    return trine.simulate(JOB, trine.Plan(batch=2), gpu="h100-sxm", **options)


@pytest.mark.parametrize("name", sorted(power_curves()))
def test_power_at_the_clock_equals_the_cap(name):
    """Where the cap binds, the mean power at the chosen clock is the cap; closed form of two equal halves."""
    curve = curve_of(load_gpu(name))
    load = StepLoad(compute_s=1.0, memory_s=1.0, clocked_j=1500.0, steady_j=100.0)
    full = curve.static_w + (1500.0 + 100.0) / 2
    assert load.power_w(curve, 1.0) == pytest.approx(full)
    clock = load.clock_at(curve, 0.8 * full)
    voltage = 1 - curve.slope * (1 - max(clock, curve.knee))
    power = curve.static_w + (1500.0 * voltage**2 + 100.0) / (1 / clock + 1)
    assert power == pytest.approx(0.8 * full, abs=0.01)


def test_a_cap_at_the_limit_or_above_changes_nothing():
    plain = step()
    for cap in (700, 900):
        capped = step(power_cap_w=cap)
        assert capped.step_time_ps == plain.step_time_ps
        assert (capped.records.end_ps == plain.records.end_ps).all()
        assert f"power cap of {cap} W changes no time: the default limit is 700 W" in "\n".join(capped.warnings)


def test_lower_caps_take_longer_and_less_energy_per_second():
    results = [step(power_cap_w=cap) for cap in (650, 600, 550, 500)]
    times = [result.step_time_ps for result in results]
    assert all(earlier < later for earlier, later in itertools.pairwise(times))
    powers = [result.energy.states_w["computing"] for result in results]
    assert powers == pytest.approx([650, 600, 550, 500], abs=1)
    assert results[0].energy.evidence == "modelled"
    assert "power cap: compute-bound operators" in results[-1].band.words
    low, high = results[-1].band.ends_ps(results[-1])
    assert low <= results[-1].step_time_ps <= high
    row = next(row for row in results[-1].evidence if row.what == "power cap")
    assert row.kind == "modelled"
    assert "tests/data/h100" in row.detail


def test_only_compute_bound_operators_take_longer():
    """GEMMs take longer by one factor, attention by one, and the rest keeps its time."""
    plain, capped = step(), step(power_cap_w=500)
    setup = [trine.training.setup.setup_of(JOB, trine.Plan(batch=2), trine.training.options.SimulateOptions(
        gpu="h100-sxm", power_cap_w=cap)) for cap in (None, 500)]  # fmt: skip
    before, after = (each.clocks[0] for each in setup)
    gemm = after.slowdown_of_gemms() / before.slowdown_of_gemms()
    attention = after.slowdown_of_others / before.slowdown_of_others
    assert 1 < gemm <= attention * (1 + 1e-9)
    split = trine.compute.Split(2)
    ratios = {}
    for op in setup[0].workload.operators:
        before, after = (each.model.duration(op, split).ps for each in setup)
        if before > 10**6:
            ratios.setdefault(op.name, set()).add(round(after / before, 3))
    assert {ratio for values in ratios.values() for ratio in values} == {1.0, round(gemm, 3), round(attention, 3)}
    assert plain.step_time_ps < capped.step_time_ps < plain.step_time_ps * attention * 1.001


def test_refusals():
    with pytest.raises(InputError, match=r"250 W is below the published range of the h100-sxm: .* at 1,190 MHz"):
        step(power_cap_w=250)
    with pytest.raises(InputError, match="no published power curve of b200: trine has a100-80gb, h100-sxm, h200"):
        trine.simulate("vgg13-h100-b128", gpu="b200", power_cap_w=500)
    with pytest.raises(InputError, match="no published power curve of an unknown GPU"):
        power_cap(500, trine.load(JOB), None, None)


def test_half_of_the_memorys_energy_follows_the_voltage():
    """A memory-bound step of 1 s at the maximum clock: half its memory power scales with V^2, half stays."""
    gpu, workload = load_gpu("h100-sxm"), load_bundled("vgg13-h100-b128", 128)
    curve = curve_of(gpu)
    model = make_compute("recorded", workload)
    load = load_of(workload, model, Bounds(workload, gpu), curve, workload.batch)
    assert load.memory_s > 0
    assert load.steady_j == pytest.approx(curve.memory_w * load.memory_s / 2)
    assert load.clocked_j >= load.steady_j * (1 - 1e-9)


def test_the_likely_clock_spans_errors_of_power_and_of_the_slope():
    """Clocks at a limit with 20 % more or less dynamic energy, and a slope of the voltage 0.12 larger or smaller."""
    curve = curve_of(load_gpu("h100-sxm"))
    load = StepLoad(compute_s=1.0, memory_s=0.2, clocked_j=900.0, steady_j=60.0)
    chosen = StepClock(550, curve, load, load.clock_at(curve, 550), is_table=True, base=1.0)
    clocks = []
    for energy, error in itertools.product((0.8, 1.0, 1.2), (-0.12, 0.0, 0.12)):
        bent = curve.model_copy(update={"slope": min(max(curve.slope + error, 0.01), 0.99)})
        scaled = StepLoad(compute_s=1.0, memory_s=0.2, clocked_j=900.0 * energy, steady_j=60.0 * energy)
        clocks.append(min(scaled.clock_at(bent, 550), curve.ceiling) * curve.max_mhz)
    assert chosen.range_mhz() == (min(clocks), max(clocks))
    assert min(clocks) < min(clocks[1::3]) or max(clocks) > max(clocks[1::3])  # the slope matters here


def test_a_gpu_that_communicates_draws_half_its_limit():
    states = step(power_cap_w=600).energy.states_w
    assert states["communicating"] == pytest.approx(350)
