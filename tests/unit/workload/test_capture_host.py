"""Machine description in a capture, with a stand-in for PyTorch that has a GPU."""

from types import SimpleNamespace

import trine
from trine.workload.tracing import machine as machine_module
from trine.workload.tracing.machine import describe_machine

MODULE_OF_DRIVER = """\
NVRM version: NVIDIA UNIX x86_64 Kernel Module  535.129.03  Thu Oct 19 18:56:32 UTC 2023
GCC version:  gcc version 12.3.0
"""


def raises_mixed():
    raise RuntimeError("you have used mix of the legacy and new APIs")


FAKE_TORCH = SimpleNamespace(
    __version__="2.13.0+cu130",
    version=SimpleNamespace(cuda="13.0", hip=None),
    backends=SimpleNamespace(
        cudnn=SimpleNamespace(version=lambda: 91002, allow_tf32=True, benchmark=False, deterministic=False)
    ),
    cuda=SimpleNamespace(get_device_name=lambda: "NVIDIA H100 80GB HBM3"),
    get_num_threads=lambda: 8,
    get_default_dtype=lambda: "torch.float32",
    get_float32_matmul_precision=raises_mixed,
)


def test_a_gpu_machine(tmp_path, monkeypatch):
    (tmp_path / "version").write_text(MODULE_OF_DRIVER)
    monkeypatch.setattr(machine_module, "_NVIDIA_DRIVER", tmp_path / "version")
    machine = describe_machine(FAKE_TORCH, "cuda")
    assert machine.device_name == "NVIDIA H100 80GB HBM3"
    assert machine.versions["driver"] == "535.129.03"
    assert machine.versions["trine"] == trine.__version__
    assert (machine.versions["cuda"], machine.versions["cudnn"]) == ("13.0", "91002")
    assert "hip" not in machine.versions
    assert machine.settings["cudnn_allow_tf32"] == "True"
    assert machine.settings["default_dtype"] == "float32"
    assert "both" in machine.settings["float32_matmul_precision"]


def test_a_processor_and_its_fallbacks(tmp_path, monkeypatch):
    (tmp_path / "cpuinfo").write_text("processor : 0\nmodel name\t: AMD EPYC 9654\nmodel name\t: other\n")
    monkeypatch.setattr(machine_module, "_CPU_INFO", tmp_path / "cpuinfo")
    machine = describe_machine(FAKE_TORCH, "cpu")
    assert machine.device_name == machine.host["processor"] == "AMD EPYC 9654"
    assert "cuda" not in machine.versions
    monkeypatch.setattr(machine_module, "_CPU_INFO", tmp_path / "absent")
    assert describe_machine(FAKE_TORCH, "cpu").device_name
    monkeypatch.setattr(machine_module, "_NVIDIA_DRIVER", tmp_path / "absent")
    assert "driver" not in describe_machine(FAKE_TORCH, "cuda").versions


def test_every_value_is_text_and_no_name_of_the_host():
    import socket

    machine = describe_machine(FAKE_TORCH, "cuda")
    values = [*machine.versions.values(), *machine.host.values(), *machine.settings.values()]
    assert all(isinstance(value, str) for value in values)
    assert socket.gethostname() not in machine.host.values()
