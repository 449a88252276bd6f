"""Is another package's plug-in of any kind found by its name, and refused if it cannot run?"""

from __future__ import annotations

import subprocess
import sys

import pytest

from trine.compute import make_compute
from trine.compute.models import COMPUTE_MODELS
from trine.engine import run
from trine.engine.models import NETWORK_MODELS, EqualSplit, FairSharing, network_model
from trine.errors import InputError
from trine.graph.builder import TaskGraphBuilder
from trine.workload import load

PACKAGE = """
from trine.compute.models import Recorded
from trine.engine.models import FairSharing


class Half(FairSharing):
    name = "half"

    def rates(self, routes, capacity):
        return [rate / 2 for rate in super().rates(routes, capacity)]


def recorded_anew(workload, transfer, calibration):
    return Recorded(workload)
"""

ENTRY_POINTS = """
[trine.network]
half = outside:Half

[trine.compute]
anew = outside:recorded_anew
"""

PROGRAM = """
import trine
from trine.compute import make_compute
from trine.engine.models import NETWORK_MODELS, network_model

assert NETWORK_MODELS.names() == ("fair", "equal", "fifo", "circuit", "half")
assert type(network_model("fair")).__module__ == "trine.engine.models"
builder = trine.TaskGraphBuilder([10**9], [0])
builder.transfer(0, 1, [0], 10**9)
records = trine.run(builder.build(), network="half", engine="reference")
assert (records.end_ps[0], records.network) == (2 * 10**12, "half")
try:
    trine.run(builder.build(), network="half")
except trine.InputError as error:
    print(error)
print(make_compute("anew", trine.load("vgg13-h100-b128")).name)
print(trine.simulate("vgg13-h100-b128", compute="anew").step_time_s)
"""


def test_entry_points_of_another_package(tmp_path):
    (tmp_path / "outside.py").write_text(PACKAGE)
    info = tmp_path / "outside-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: outside\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(ENTRY_POINTS)
    code = f"import sys; sys.path.insert(0, {str(tmp_path)!r})\n{PROGRAM}"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == [
        "network: 'half' is not built in: it is plain Python and runs with engine='reference' only",
        "recorded",
        "0.094038",
    ]


def test_unknown_names_list_the_known_ones():
    with pytest.raises(InputError, match=r"network: unknown network model 'none'; known: circuit, equal, fair"):
        network_model("none")
    with pytest.raises(InputError, match=r"compute: unknown compute model 'x'; known: auto, linear, recorded"):
        make_compute("x", load("vgg13-h100-b128"))
    assert NETWORK_MODELS.names()[:2] == ("fair", "equal")
    assert COMPUTE_MODELS.names()[:3] == ("auto", "linear", "recorded")


def test_a_model_object_needs_the_reference_engine():
    builder = TaskGraphBuilder([10**9], [0])
    builder.transfer(0, 1, [0], 10**9)
    with pytest.raises(InputError, match=r"'fair' is not built in: .* engine='reference' only"):
        run(builder.build(), network=FairSharing())
    assert run(builder.build(), network=EqualSplit(), engine="reference").end_ps[0] == 10**12


@pytest.mark.parametrize("network", [FairSharing, object(), 3])
def test_what_is_no_network_model(network):
    with pytest.raises(InputError, match="has a name and a method rates"):
        network_model(network)
