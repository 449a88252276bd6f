"""Is the energy of a step power times time, summed over all ranks, folded or not?"""

import pytest
from results_graphs import records, result

import trine
from trine.common.units import format_energy, format_power, parse_power
from trine.errors import InputError, SpecError, UnitError
from trine.graph.builder import TaskGraphBuilder
from trine.results.energy import power_shares

MS = 10**9


def graph():
    """Return a graph and its times: rank 0 computes 6 ms and sends for 2 ms, then rank 1 computes 2 ms."""
    builder = TaskGraphBuilder([10**9], [0])
    first = builder.compute(0, "main", 6 * MS)
    message = builder.transfer(0, 1, [0], 2 * 10**6, after=[first])
    builder.compute(1, "main", 2 * MS, after=[message])
    times = records((0, 0, 6 * MS), (6 * MS, 6 * MS, 8 * MS), (8 * MS, 8 * MS, 10 * MS))
    return builder.build(), times


def test_power_times_time():
    """A 500 W and a 1000 W GPU draw 0.9, 0.5 and 0.2 of it while computing, only communicating, and idle."""
    found = result(*graph(), power_w=(500, 1000)).energy
    first = 500 * (0.9 * 6 + 0.5 * 2 + 0.2 * 2) / 1000
    second = 1000 * (0.9 * 2 + 0.5 * 2 + 0.2 * 6) / 1000
    assert found.joules == pytest.approx(first + second)
    assert found.mean_w == pytest.approx((first + second) / 0.01)
    assert found.peak_rank_w == pytest.approx(second / 0.01)
    assert found.by_state == pytest.approx({"computing": 2.7 + 1.8, "communicating": 1.5, "idle": 1.4})
    assert found.states_w == {}  # the GPUs differ
    assert (found.num_ranks, found.num_counted, found.evidence) == (2, 2, "assumed")


def test_shares_are_the_preset_files():
    shares = power_shares()
    assert (shares.computing, shares.communicating, shares.idle) == (0.9, 0.5, 0.2)
    assert set(shares.sources) == {"computing", "communicating", "idle"}


def test_no_energy_where_no_power_is_known():
    assert result(*graph()).energy is None
    assert "energy" not in result(*graph()).details()
    assert result(*graph()).to_json()["energy"] is None
    with pytest.raises(InputError, match="power_w"):
        result(*graph(), power_w=(500,))


def test_a_step_of_one_gpu_that_only_computes():
    answer = trine.simulate("vgg13-h100-b128")
    assert answer.energy.joules == pytest.approx(0.9 * 700 * 0.094038)
    assert "energy  59.24 J a step, 630 W on average for 1 GPU (assumed)" in answer.details()
    assert answer.to_json()["energy"]["states_w"] == pytest.approx(
        {"computing": 630, "communicating": 350, "idle": 140}
    )


def test_folded_ranks_count_for_those_that_are_like_them():
    """The result shows a few of 128 ranks; the sum over all ranks, one by one, is the same."""
    cluster = trine.load_cluster("dgx-h100", nodes=16)
    plan = trine.Plan(dp=16, tp=2, pp=4, micro_batch=64, overlap="modelled")
    folded = trine.simulate("vgg13-h100-b128", plan, cluster=cluster)
    assert len(folded.shown_ranks) < folded.num_ranks == 128
    one_by_one = folded.of_ranks(range(128)).energy
    assert folded.energy.joules == pytest.approx(one_by_one.joules, rel=1e-12)
    assert folded.energy.num_counted == one_by_one.num_counted == 128


def test_where_not_all_classes_are_shown_some_stand_for_the_others():
    """One slow GPU affects each of its neighbours differently; the result shows two of 128 ranks."""
    cluster = trine.load_cluster("dgx-h100", nodes=16)
    slow = trine.Stragglers(slow=((17, 1.3),))
    plan = trine.Plan(dp=128)
    folded = trine.simulate("vgg13-h100-b128", plan, cluster=cluster, stragglers=slow)
    one_by_one = folded.of_ranks(range(128)).energy
    assert folded.energy.num_counted < 128
    assert f"{folded.energy.num_counted} of 128 ranks" in folded.energy.detail
    assert folded.energy.joules == pytest.approx(one_by_one.joules, rel=0.02)


def test_power_has_a_unit():
    assert [parse_power(text) for text in ("700 W", "1.2 kW")] == [700, 1200]
    with pytest.raises(UnitError, match="unit"):
        parse_power(700)
    with pytest.raises(UnitError, match="positive"):
        parse_power("0 W")
    assert (format_energy(8400.0), format_power(5600.0)) == ("8.4 kJ", "5.6 kW")


def test_every_gpu_preset_says_its_power_and_where_that_is_from():
    from trine.cluster.presets import known_gpus

    for name in known_gpus():
        gpu = trine.load_gpu(name)
        assert 50 < gpu.power_w < 1500, name
        assert gpu.sources["power"], name


def test_a_preset_without_power_or_with_a_bare_number(tmp_path):
    from trine.cluster.presets import GpuSpec
    from trine.common.spec import check

    fields = {"memory": "1 GiB", "memory_bandwidth": "1 GB/s", "compute_units": 1, "sources": {}}
    name = {"name": "made-up"}
    assert check(GpuSpec, {**fields, "compute": {"float32": "1 TFLOP/s"}}, "f", name).power_w is None
    with pytest.raises(SpecError, match=r"power.*needs a unit"):
        check(GpuSpec, {**fields, "compute": {"float32": "1 TFLOP/s"}, "power": 700}, "f", name)
