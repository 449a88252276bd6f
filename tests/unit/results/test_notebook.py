"""Notebook manners: one line of repr, HTML that is escaped, pictures and data frames of every result."""

from __future__ import annotations

import importlib
import inspect
import pkgutil
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import cache
from html.parser import HTMLParser

import pytest

import trine
from trine.common.shown import MAX_REPR
from trine.errors import InputError, MissingExtraError
from trine.results.report import Report

EVIL = "<script>alert('x')</script> & co"


@cache
def cluster() -> trine.Cluster:
    return trine.load_cluster("dgx-h100", gpus=4)


@cache
def result() -> trine.Result:
    return trine.simulate("vgg13-h100-b128", trine.Plan(dp=4), cluster=cluster())


@cache
def replay():
    return trine.run_eidolon(trine.EidolonOptions(kernel="gemv-allreduce", rows=32, cols=32, peers=3))


#: Results of the functions of trine, by the function.
RESULTS: dict[str, Callable[[], Report]] = {
    "simulate": result,
    "rank": lambda: result().rank(1),
    "collective": lambda: trine.collective("all_reduce", [1 << 16, 1 << 20], cluster()),
    "loadstore_collective": lambda: trine.loadstore_collective("all_reduce", [1 << 12, 1 << 13], cluster()),
    "inside": lambda: trine.loadstore_collective("all_gather", [1 << 12], cluster()).result,
    "compare_fidelity": lambda: trine.compare_fidelity("all_reduce", [1 << 12], cluster()),
    "run_eidolon": replay,
    "hop": lambda: trine.hop("vgg13-h100-b128", trine.HopProtocol(iterations=3), cluster=cluster()),
    "plan": lambda: trine.plan("llama-3.2-1b,layers=2", cluster="dgx-h100", gpus=2, global_batch=4, workers=1),
    "overlap_range": lambda: trine.overlap_range("vgg13-h100-b128", trine.Plan(dp=4), cluster=cluster()),
}

#: Other public objects.
OBJECTS: dict[str, Callable[[], object]] = {
    "Calibration": lambda: trine.calibrate([trine.load("vgg13-h100-b128")]),
    "Cluster": cluster,
    "CollectiveOptions": lambda: trine.CollectiveOptions(algorithm="x" * 500),
    "Collectives": lambda: trine.Collectives(cluster()),
    "EidolonOptions": lambda: replay().options,
    "HopProtocol": trine.HopProtocol,
    "LoadStoreCosts": lambda: trine.LoadStoreCosts(cluster()),
    "LoadStoreOptions": lambda: trine.LoadStoreOptions(workgroups=4),
    "Operator": lambda: trine.load("vgg13-h100-b128").operators[0],
    "Plan": lambda: trine.Plan(dp=4, cuts=tuple(range(1, 200)), pp=200),
    "Records": lambda: result().records,
    "Stragglers": lambda: trine.Stragglers(slow=tuple((rank, 2.0) for rank in range(200))),
    "TaskGraph": lambda: result().graph,
    "Tensor": lambda: next(iter(trine.load("vgg13-h100-b128").tensors.values())),
    "Workload": lambda: trine.load("vgg13-h100-b128"),
    "WriteTable": trine.WriteTable,
    "cite": lambda: trine.cite(result()),
    "load_gpu": lambda: trine.load_gpu("h100-sxm"),
    "memory": lambda: result().memory,
    "model": lambda: replay().work.model,
    "program": lambda: replay().work.program,
    "rank_times": lambda: result().rank_times,
    "record_table": lambda: result().record_table,
    "gpu records": lambda: replay().inside.records,
}


class Page(HTMLParser):
    """Tags that are open, and all words."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.seen: set[str] = set()
        self.words = ""

    def handle_starttag(self, tag, attrs):
        self.open.append(tag)
        self.seen.add(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        self.words += data


def read(html: str) -> Page:
    page = Page()
    page.feed(html)
    page.close()
    assert page.open == []
    return page


@pytest.mark.parametrize("name", [*RESULTS, *OBJECTS])
def test_repr_is_one_line(name):
    text = repr({**RESULTS, **OBJECTS}[name]())
    assert "\n" not in text
    assert len(text) <= MAX_REPR < 200


@pytest.mark.parametrize("name", RESULTS)
def test_results_are_html_without_what_is_not_escaped(name):
    found = RESULTS[name]()
    page = read(found._repr_html_())
    assert found.headline in page.words
    assert page.seen <= {"div", "p", "b", "img", "table", "caption", "tr", "th", "td", "details", "summary", "ul", "li"}


@pytest.mark.parametrize(
    "thing",
    [
        lambda: replace(result(), warnings=(EVIL,), plan={**result().plan, "workload": EVIL}),
        lambda: replace(cluster(), name=EVIL, sources={EVIL: EVIL}),
        lambda: replace(trine.load("vgg13-h100-b128"), name=EVIL, assumptions=(EVIL,)),
    ],
    ids=["result", "cluster", "workload"],
)
def test_names_from_outside_are_escaped(thing):
    html = thing()._repr_html_()
    assert "<script>" not in html
    assert read(html).words.count(EVIL) >= 2


@pytest.mark.parametrize("name", RESULTS)
def test_every_result_is_a_data_frame(name):
    pandas = pytest.importorskip("pandas")
    found = RESULTS[name]()
    frame = found.to_frame()
    assert isinstance(frame, pandas.DataFrame)
    assert len(frame)
    for table in found.tables():
        if found.tables()[table]:
            assert len(found.to_frame(table).columns)
    with pytest.raises(InputError, match="has no 'sparrows'"):
        found.to_frame("sparrows")


@pytest.mark.parametrize("name", [name for name in RESULTS if name not in ("compare_fidelity", "hop")])
def test_every_result_has_pictures(name, tmp_path):
    figure = pytest.importorskip("matplotlib.figure")
    found = RESULTS[name]()
    assert isinstance(found.plot(), figure.Figure)
    for what in found.pictures():
        path = tmp_path / f"{what}.svg"
        assert isinstance(found.plot(what, path=path), figure.Figure)
        assert path.stat().st_size > 1000
    with pytest.raises(InputError, match="has no 'sparrows'"):
        found.plot("sparrows")
    found.plot(tmp_path / "first.png")
    assert (tmp_path / "first.png").read_bytes().startswith(b"\x89PNG")


def test_a_picture_of_chosen_ranks():
    pytest.importorskip("matplotlib")
    labels = [label.get_text() for label in result().plot("timeline", ranks=[2]).axes[0].get_yticklabels()]
    assert labels
    assert all(label.startswith("gpu2") for label in labels)


def test_without_the_extras_errors_name_them(monkeypatch):
    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(MissingExtraError, match=r"trine\[pandas\]"):
        result().to_frame()
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(MissingExtraError, match=r"trine\[plot\]"):
        result().plot()


def classes() -> Iterator[type[Report]]:
    for module in pkgutil.walk_packages(trine.__path__, "trine."):
        if module.name.startswith(
            (
                "trine.results",
                "trine.collectives",
                "trine.gpu",
                "trine.check",
                "trine.training",
                "trine.decentralised",
                "trine.formats",
            )
        ):
            importlib.import_module(module.name)
    found = [Report]
    for each in found:
        found += each.__subclasses__()
    without = ("StepValidation", "StoredReport")  # a base, and a report with the form of the one that was stored
    yield from (each for each in found if not inspect.isabstract(each) and each.__name__ not in without)


def test_every_answer_says_what_it_is_in_json():
    schemas = {each.__name__: each.SCHEMA for each in classes()}
    assert len(schemas) >= 12
    assert all(schema.replace("-", "").isalpha() for schema in schemas.values())


@pytest.mark.parametrize("name", RESULTS)
def test_json_is_the_document_in_its_envelope(name):
    found = RESULTS[name]()
    content = found.to_json()
    assert content["schema"] == f"trine/{found.SCHEMA}/1"
    assert (content["version"], content["command"]) == (trine.__version__, None)
    assert not {"schema", "version", "command"} & set(found.document())
