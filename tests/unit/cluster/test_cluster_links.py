"""Is the link catalogue complete, sane, and honest about where its numbers come from?"""

from __future__ import annotations

from pathlib import Path

import pytest

from trine.cluster import known_links, link_named, load_cluster
from trine.errors import SpecError

PROMISED = {
    "nvlink1", "nvlink2", "nvlink3", "nvlink4", "nvlink5", "xgmi2", "xgmi3", "pcie3", "pcie4", "pcie5", "upi", "qpi",
    "infinity-fabric", "ib-edr", "ib-hdr", "ib-ndr", "ib-xdr", "roce-100", "roce-200", "roce-400", "efa-v2", "efa-v3",
    "slingshot-11", "ethernet-10", "ethernet-25", "ethernet-100",
}  # fmt: skip


def test_the_promised_links_are_there() -> None:
    assert set(known_links()) >= PROMISED


@pytest.mark.parametrize("name", known_links())
def test_numbers_are_sane_and_sourced(name: str) -> None:
    kind = link_named(name)
    assert kind.name == name
    assert 0.2 * kind.peak_bytes_per_s < kind.bytes_per_s <= kind.peak_bytes_per_s
    assert 0 <= kind.hop_ps <= kind.latency_ps <= 10 * 10**6
    assert 0 <= kind.request_ps <= 1.1 * kind.latency_ps  # NVLink 5: 373 ns measured, 350 ns assumed
    assert kind.lanes >= 1
    request = {"request"} if kind.request_ps != kind.latency_ps else set()
    assert set(kind.sources) == {"bandwidth", "peak", "latency"} | request
    assert set(kind.evidence) == {"bandwidth", "latency"} | request
    assert all(len(text) > 4 for text in kind.sources.values())
    prefixes = {"nvlink-": "host", "nvlink": "scale-up", "xgmi": "scale-up", "pcie": "host", "qpi": "host"}
    prefixes |= {"upi": "host", "infinity": "host", "ddr": "host", "lpddr": "host"}
    expected = next((word for prefix, word in prefixes.items() if name.startswith(prefix)), "scale-out")
    assert kind.link_class == expected


@pytest.mark.parametrize("family", ["nvlink", "xgmi", "pcie", "ib-", "roce-", "ethernet-"])
def test_newer_generations_are_faster_by_the_data_sheet(family: str) -> None:
    kinds = [link_named(name) for name in known_links() if name.startswith(family) and name != "nvlink-c2c"]
    usual = [kind.peak_bytes_per_s * (kind.lanes if family == "nvlink" else 1) for kind in kinds]
    assert usual == sorted(usual)
    assert len(set(usual)) == len(usual)


def test_data_sheets_of_whole_gpus() -> None:
    """Lanes times the data sheet of one: 150, 300, 450 and 900 GB/s each way."""
    whole = {name: link_named(name).peak_bytes_per_s * link_named(name).lanes for name in known_links()}
    assert whole["nvlink2"] == 150 * 10**9
    assert whole["nvlink3"] == 300 * 10**9
    assert whole["nvlink4"] == 450 * 10**9
    assert whole["nvlink5"] == 900 * 10**9


def test_unknown_names_get_the_nearest() -> None:
    with pytest.raises(SpecError, match="unknown kind of link 'nvlnk4'; did you mean 'nvlink4'"):
        link_named("nvlnk4")


def test_messages_see_the_data_sheet_and_the_latency_of_a_request() -> None:
    machine = load_cluster("dgx-h100")
    kind = link_named("nvlink4")
    assert machine.seen_by_messages(0) == (450 * 10**9, kind.request_ps)
    slow = load_cluster("dgx-h100", slow_links=[("gpu0->nvswitch", 0.5)])
    link = next(i for i, link in enumerate(slow.links) if link.name == "gpu0->nvswitch")
    assert slow.seen_by_messages(link) == (225 * 10**9, kind.request_ps)


def test_links_with_numbers_of_their_own_keep_them_for_messages(tmp_path: Path) -> None:
    file = tmp_path / "own.yaml"
    file.write_text(
        "devices: [a, b, c]\nlinks:\n- {from: a, to: b, bandwidth: 40 GB/s, peak: 50 GB/s, latency: 1 us}\n"
        "- {from: b, to: c, link: nvlink4, lanes: 2, latency: 1 us}\n- {from: c, to: a, link: nvlink3, lanes: 2}\n"
    )
    machine = load_cluster(str(file))
    assert machine.seen_by_messages(0) == (40 * 10**9, 10**6)
    assert machine.seen_by_messages(1) == (50 * 10**9, 10**6)
    assert machine.seen_by_messages(2) == (50 * 10**9, link_named("nvlink3").latency_ps)
