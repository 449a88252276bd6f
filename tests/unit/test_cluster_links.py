"""Is the link catalogue complete, sane, and honest about where its numbers come from?"""

from __future__ import annotations

import pytest

from trine.cluster import known_links, link_named
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
    assert kind.lanes >= 1
    assert set(kind.sources) == {"bandwidth", "peak", "latency"}
    assert set(kind.evidence) == {"bandwidth", "latency"}
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
