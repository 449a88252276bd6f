"""Which PCI devices of an lstopo file are GPUs and NICs, by class, vendor and the drivers that use them."""

import pytest

from trine.cluster.parts import GPU, NIC
from trine.formats.lstopo import _MachineReader
from trine.formats.media import LinkChoices, Media
from trine.formats.reader import parse_xml

#: Class and vendor as lstopo prints them, the operating system's device, and what the device is for trine.
DEVICES = [
    ("0302 [10de:2330]", "", GPU),  # NVIDIA without a driver
    ("0300 [10de:1b80]", "", GPU),
    ("1200 [1002:74a1]", "", GPU),  # AMD MI300X, a processing accelerator
    ("1200 [1da3:1020]", "", GPU),  # Gaudi
    ("0380 [1002:740c]", "", GPU),  # AMD MI250X without a compute driver
    ("0300 [1002:73bf]", "", ""),  # AMD's display card without one
    ("0300 [1002:73bf]", "rsmi0", GPU),
    ("0380 [8086:0bd5]", "", ""),  # Intel without a compute driver
    ("0380 [8086:0bd5]", "ze0 LevelZero", GPU),
    ("0300 [1a03:2000]", "", ""),  # the board's VGA
    ("0207 [15b3:1021]", "", NIC),
    ("0200 [8086:1572]", "", NIC),
    ("0108 [144d:a80a]", "", ""),  # a disk
]


@pytest.mark.parametrize(("pci_type", "driver", "kind"), DEVICES)
def test_kinds_of_devices(pci_type, driver, kind):
    name, _, subtype = driver.partition(" ")
    inner = f'<object type="OSDev" name="{name}" subtype="{subtype}"/>' if driver else ""
    item = parse_xml(f'<object type="PCIDev" pci_type="{pci_type} a1">{inner}</object>', "t.xml")
    assert _MachineReader("t.xml", None, Media(LinkChoices(given={}), "t.xml")).wanted(item) == kind
