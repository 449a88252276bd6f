import csv
import sys

import numpy as np
import pytest
from results_graphs import full_result

from trine.errors import MissingExtraError

TABLES = ["collectives", "headline", "layers", "links", "memory", "operators", "phases", "ranks", "records"]


def test_csv_holds_every_table_and_the_records(tmp_path):
    full_result().to_csv(tmp_path / "new" / "folder")
    files = sorted((tmp_path / "new" / "folder").iterdir())
    assert [file.name for file in files] == ["SHA256SUMS", *(f"{name}.csv" for name in TABLES)]
    folder = tmp_path / "new" / "folder"
    with (folder / "records.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert [row["name"] for row in rows] == ["input copy", "conv", "conv", "broadcast", "linear", "conv"]
    assert rows[4]["wait_reason"] == "communication"
    assert (rows[0]["layer"], rows[1]["layer"]) == ("", "features.0")
    with (folder / "memory.csv").open(newline="") as file:
        assert next(csv.DictReader(file))["weights_bytes"] == "1000"


def test_npz_is_read_back_without_pickle_and_is_the_same_every_time(tmp_path):
    first, second = tmp_path / "a.result", tmp_path / "b.result"
    full_result().to_npz(first)
    full_result().to_npz(second)
    assert first.read_bytes() == second.read_bytes()
    with np.load(first, allow_pickle=False) as table:
        assert table["end_ps"].tolist() == [10, 40, 70, 90, 100, 20]
        assert table["kind_names"][table["kind"]].tolist()[:2] == ["transfer", "compute"]


def test_parquet_keeps_numbers_and_words(tmp_path):
    parquet = pytest.importorskip("pyarrow.parquet")
    full_result().to_parquet(tmp_path)
    assert sorted(file.name for file in tmp_path.iterdir()) == ["SHA256SUMS", *(f"{name}.parquet" for name in TABLES)]
    table = parquet.read_table(tmp_path / "records.parquet").to_pydict()
    assert table["start_ps"] == [0, 10, 40, 50, 90, 0]
    assert table["layer"] == [None, "features.0", "features.0", "features.0", "fc", "features.0"]


def test_pandas_frame_has_categories(monkeypatch):
    pytest.importorskip("pandas")
    frame = full_result().to_pandas()
    assert frame["phase"].tolist() == ["input copy", "forward", "backward", "backward", "optimizer", "forward"]
    assert frame.groupby("kind", observed=True)["end_ps"].max().to_dict() == {"compute": 100, "transfer": 90}


@pytest.mark.parametrize(
    ("module", "extra", "use"),
    [
        ("pyarrow", "parquet", lambda found, path: found.to_parquet(path)),
        ("pandas", "pandas", lambda found, path: found.to_pandas()),
    ],
)
def test_a_missing_extra_is_named(module, extra, use, monkeypatch, tmp_path):
    monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(MissingExtraError, match=rf"trine\[{extra}\]"):
        use(full_result(), tmp_path)
