"""Does the model of power against clock reproduce measured GPUs: ours at 700 W, and Perseus's A100 at set clocks?"""

import csv
from pathlib import Path

import pytest

from trine.cluster import load_gpu
from trine.compute.clock import POWER_ERROR, step_clock
from trine.compute.power_curve import curve_of
from trine.parallel.plan import Plan
from trine.training.options import SimulateOptions
from trine.training.setup import setup_of

DATA = Path(__file__).parents[1] / "data" / "h100"
#: case of power.csv -> workload, batch; steps that the launching CPU does not limit
STEPS = {
    "llama-3.2-1b 4 2048 bf16 fused eager": ("model:llama-3.2-1b,sequence=2048", 4),
    "llama-3.2-3b 4 2048 bf16 fused recompute": ("model:llama-3.2-3b,sequence=2048", 4),
    "bert-large 32 512 bf16 fused eager": ("model:bert-large", 32),
    "resnet50 256 fp32 adam": (str(DATA / "resnet50-b256"), 256),
    "densenet121 128 fp32 adam": (str(DATA / "densenet121-b128"), 128),
}
#: Perseus (SOSP 2024): clock in MHz, seconds, J of the forward pass of GPT-3 175B's first stage on an A100 SXM
#: (github.com/ml-energy/zeus, sosp24_data/emulation/stage_profile/gpt3-175b+a100_sxm_bf16.csv).
PERSEUS = (
    (1365, 0.05044544601440424, 23.495303999999532), (1305, 0.05196970939636224, 22.18107199999969),
    (1260, 0.053565742492675684, 20.79418400000036), (1200, 0.05606334686279292, 19.260104000000286),
    (1110, 0.06034601020812984, 17.864672000000255), (1005, 0.06648568916320799, 17.781311999999918),
    (930, 0.0716475677490234, 17.931135999999942), (855, 0.07773071098327632, 18.239359999999404),
)  # fmt: skip


def measured_steps():
    with (DATA / "power.csv").open() as file:
        return [row for row in csv.DictReader(file) if row["section"] == "steps" and row["case"] in STEPS]


@pytest.mark.parametrize("row", measured_steps(), ids=lambda row: f"{row['gpu']}-{row['case'].split()[0]}")
def test_clock_and_power_of_measured_steps(row):
    """At the default limit, steps draw the predicted power, within 14 %; their mean clock is at most 13 % too low.

    The clock errs to the low side in all six mixed steps (-5 to -12 %): the balance lacks the part of their time that
    trine does not predict, and the energy of real operands. GEMMs feel less of it, as their clock has a ceiling.
    """
    source, batch = STEPS[row["case"]]
    plan = Plan(batch=batch, recompute="full" if row["case"].endswith("recompute") else "none")
    software = "pytorch-eager" if source.startswith("model:") else None
    setup = setup_of(source, plan, SimulateOptions(gpu=row["gpu"], software=software))
    clock = setup.clocks[0] if setup.clocks else step_clock(setup.workload, setup.model, load_gpu(row["gpu"]), batch)
    curve, load = clock.curve, clock.load
    mean_mhz = load.mean_clock(curve, clock.clock) * curve.max_mhz
    print(f"{mean_mhz:.0f} MHz, measured {row['sm_mhz']}: {mean_mhz / float(row['sm_mhz']) - 1:+.1%}")
    assert -0.13 < mean_mhz / float(row["sm_mhz"]) - 1 < 0.02
    assert load.power_w(curve, clock.clock) == pytest.approx(float(row["energy_w"]), rel=0.14)
    # the measured clock and power lie within the stated error of the dynamic power
    share = float(row["sm_mhz"]) / curve.max_mhz
    assert load.scaled(1 - POWER_ERROR).power_w(curve, share) < float(row["energy_w"]) + 15
    assert load.scaled(1 + POWER_ERROR).power_w(curve, share) > float(row["energy_w"])


def test_power_of_an_a100_at_set_clocks():
    """The A100's curve, scaled to one point, gives the power at each of Perseus's clocks within 5 %."""
    curve = curve_of(load_gpu("a100-80gb"))
    powers = [(mhz / curve.max_mhz, joules / seconds) for mhz, seconds, joules in PERSEUS]
    clock, power = powers[0]
    dynamic = (power - curve.static_w) / (clock * curve.squared_voltage(clock))
    for clock, power in powers:
        predicted = curve.static_w + dynamic * clock * curve.squared_voltage(clock)
        assert predicted == pytest.approx(power, rel=0.05)


def test_time_of_compute_follows_the_clock():
    """Perseus's stage, nearly all GEMMs, takes as much longer as its clock is lower, within 3 %."""
    first_mhz, first_s, _ = PERSEUS[0]
    for mhz, seconds, _ in PERSEUS:
        assert seconds / first_s == pytest.approx(first_mhz / mhz, rel=0.04)
