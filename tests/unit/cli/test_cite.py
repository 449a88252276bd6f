"""Do citations list the sources that a result rests on?"""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import pytest
import yaml

import trine
from trine.common.evidence import Evidence
from trine.errors import InputError

ROOT = Path(__file__).parents[3]


def keys(result) -> list[str]:
    return [each.key for each in trine.cite(result).references]


def cluster() -> trine.Cluster:
    return trine.load_cluster("dgx-h100", gpus=4)


@pytest.fixture(scope="module")
def step() -> trine.Result:
    return trine.simulate("vgg13-h100-b128", trine.Plan(dp=4), cluster=cluster())


def test_a_step_of_a_bundled_trace_rests_on_triosim(step):
    assert keys(step)[:2] == ["trine", "triosim"]
    assert "collectivesmeasured" in keys(step), "the library's costs are fitted to measurements"


def test_bare_links_and_a_written_model_rest_on_neither():
    links = trine.build_topology("ring", "50 GB/s", "1 us", 2, gpu="h100-sxm")
    found = trine.simulate("model:gpt-2-xl", trine.Plan(dp=2, batch=2), cluster=links)
    assert "triosim" not in keys(found)
    assert "collectivesmeasured" not in keys(found)


def test_levels_and_protocols_have_their_papers():
    assert "astrasim3" in keys(trine.loadstore_collective("all_gather", [1 << 12], cluster()))
    replay = trine.run_eidolon(trine.EidolonOptions(kernel="gemv-allreduce", rows=32, cols=32, peers=3))
    assert {"eidola", "astrasim3"} <= set(keys(replay))
    assert "hop2019" in keys(trine.hop("vgg13-h100-b128", trine.HopProtocol(iterations=2), cluster=cluster()))


def test_papers_that_the_evidence_names_are_found(step):
    found = replace(step, evidence=(Evidence("clock", "measured", "table 3 of arXiv 2402.13499"),))
    assert "arxiv240213499" in keys(found)
    assert "2402.13499" in trine.cite(found).bibtex


def test_bibtex_and_text(step):
    found = trine.cite(step)
    entries = re.findall(r"^@(\w+)\{(\w+),$", found.bibtex, re.M)
    assert [key for _, key in entries] == keys(step)
    assert found.bibtex.count("{") == found.bibtex.count("}")
    assert len(str(found).splitlines()) == len(entries)
    assert trine.__version__ in found.text
    assert "\n" not in repr(found)
    assert "<details>" in found._repr_html_()


def test_what_is_no_result_is_refused():
    with pytest.raises(InputError, match="needs a result of trine, got int"):
        trine.cite(3)  # type: ignore[arg-type]


def test_citation_cff_follows_the_rules_of_1_2_0():
    found = yaml.safe_load((ROOT / "CITATION.cff").read_text())
    assert found["version"] == trine.__version__
    assert found["cff-version"] == "1.2.0"
    assert {"cff-version", "message", "title", "authors"} <= set(found)
    assert found["version"] == trine.__version__
    assert found["type"] in ("software", "dataset")
    assert all(set(author) == {"name"} for author in found["authors"]), "an entity, no person"
    allowed = {"cff-version", "message", "title", "authors", "version", "type", "abstract", "keywords", "license"}
    assert set(found) <= allowed
