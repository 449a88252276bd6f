"""How long does it take to read a flag, and how often does a wavefront that waits read it?"""

import pytest

from trine.cluster import load_cluster
from trine.gpu.model.derived import flag_read_ps
from trine.gpu.model.files import load_gpu_model
from trine.gpu.model.options import ModelOptions
from trine.gpu.run import GpuRunOptions, run_gpus
from trine.gpu.text import parse_program

CLUSTERS = {"eidola": "eidola", "h100-sxm": "dgx-h100", "mi300x": "mi300x-node"}
ENGINES = ("reference", "compiled")


def run(model, body, uncached, cluster, engine):
    text = (
        f"program p\nranks 1\nline {model.line_bytes} B\nbuffer f 4 KiB{' uncached' if uncached else ''}\n"
        f"semaphores 4 at f\ninitially sem 0 = 1\nkernel rank 0\n{body}"
    )
    machine = load_cluster(cluster)
    return run_gpus(parse_program(text), machine, machine.gpus[:1], model, options=GpuRunOptions(engine=engine)).gpu


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("uncached", [False, True])
@pytest.mark.parametrize("name", sorted(CLUSTERS))
def test_one_read_of_a_flag(name, uncached, engine):
    model = load_gpu_model(name)
    found = run(model, "acquire sem 0", uncached, CLUSTERS[name], engine)
    assert int(found.op_end_ps[0] - found.op_start_ps[0]) == flag_read_ps(model, uncached=uncached)


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("uncached", [False, True])
def test_reads_of_a_wavefront_that_waits(uncached, engine):
    """The flag is released in the middle between two reads."""
    model = ModelOptions(poll="1 us").of(load_gpu_model("eidola"))
    period = model.poll_ps + flag_read_ps(model, uncached=uncached)
    cycles = round(7.5 * period / model.cycle_ps)
    found = run(
        model, f"workgroups 1\ncompute {cycles} cycles\nbarrier\nrelease own sem 1\nworkgroups 1\nacquire sem 1",
        uncached, "eidola", engine,
    )  # fmt: skip
    assert (int(found.acquires[0]), int(found.polls[0])) == (9, 8)
    assert int(found.op_end_ps[-1] - found.op_start_ps[-1]) == 8 * period + flag_read_ps(model, uncached=uncached)
