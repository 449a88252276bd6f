"""Write the tables of src/trine/presets/measured/serving from the collected tables in ../shared/data/measured/serving.

Kept are the columns that describe a run and its measured times; numbers have seven digits. Three facts of the source
``aiconfigurator`` are corrected from other columns of the same row:

- Rows of InferenceX with expert parallelism state ``tp_size`` x ``moe_ep_size`` as tp_size (64 for 8 GPUs, 16 for 4, 4
  for 2), or as attention_dp_size. The product is divided by moe_ep_size. Rows that the file of 2026-03-25 repeats, and
  rows of the same number of GPUs without expert parallelism (equal TPOT within 1 %), show that.
- ``batch_size`` is divided by the attention replicas: the source string states the concurrency of the run.
- ``moe_tp_size`` follows from the GPUs and moe_ep_size.

    python benchmarks/bundle_serving.py [../shared/data/measured/serving [FOLDER TO WRITE TO]]
"""

from __future__ import annotations

import csv
import gzip
import io
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path

Facts = dict[str, str]

TARGET = Path(__file__).parent.parent / "src" / "trine" / "presets" / "measured" / "serving"
ROWS = [
    "row", "source", "kind", "file", "measured", "engine", "version", "model", "gpu", "precision", "gemm", "moe",
    "isl", "osl", "concurrency", "batch", "tp", "pp", "attention_dp", "ep", "prefill_workers", "decode_workers",
    "ttft_ms", "tpot_ms", "tokens_per_s", "per_gpu",
]  # fmt: skip
#: File of InferenceX rows whose degrees of parallelism are products.
MULTIPLIED = "2026-04-06.csv"
#: Kinds of the rows of TensorRT-LLM's tables.
KINDS = {"static": "static", "first token": "first-token", "saturated": "saturated"}


def main(folder: Path, target: Path) -> None:
    """Read, normalise and write all tables."""
    target.mkdir(parents=True, exist_ok=True)
    rows = [*silicon_rows(folder / "serving_silicon.csv.gz"), *trtllm_rows(folder / "serving_trtllm.csv"),
            *splitwise_rows(folder / "serving_splitwise.csv")]  # fmt: skip
    write(target / "rows.csv.gz", ROWS, rows)
    print(f"{len(rows)} rows, {(target / 'rows.csv.gz').stat().st_size} bytes")


def silicon_rows(path: Path) -> Iterator[Facts]:
    """Yield the rows of aiconfigurator's silicon samples."""
    for row in read(path):
        facts = {
            "row": row["id"], "source": "aiconfigurator", "engine": row["backend"], "version": row["backend_version"],
            "model": row["model_path"], "gpu": row["system"], "precision": row["precision"],
            "gemm": row["gemm_quant_mode"], "moe": row["moe_quant_mode"], "isl": row["isl"], "osl": row["osl"],
            "ttft_ms": digits(row["silicon_ttft_ms"]), "tpot_ms": digits(row["silicon_tpot_ms"]),
        }  # fmt: skip
        of_source = source_facts(row["silicon_data_source"])
        facts |= {"file": of_source["file"], "measured": of_source["measured"]}
        facts["concurrency"] = of_source["concurrency"] or row["batch_size"]
        yield facts | (aggregated(row, facts["file"]) if row["mode"] == "agg" else disaggregated(row))


def source_facts(text: str) -> Facts:
    """Return file, date and concurrency that the source string of a row states."""
    parts = dict(part.strip().split("=", 1) for part in text.split(";") if "=" in part)
    file = parts.get("source_file") or text.split(";")[0]
    return {
        "file": file.rpartition("aic-auto-gap-analysis/data/")[2], "measured": parts.get("measured", "")[:10],
        "concurrency": parts.get("silicon_concurrency", ""),
    }  # fmt: skip


def aggregated(row: Mapping[str, str], file: str) -> Facts:
    """Return the layout of an aggregated row, whose GPUs all run both phases."""
    tp, attention_dp = int(row["tp_size"]), int(row["attention_dp_size"] or 1)
    ep = max(int(row["moe_ep_size"]), 1)
    if file == MULTIPLIED and ep > 1:
        tp, attention_dp = (tp, attention_dp // ep) if attention_dp > 1 else (tp // ep, attention_dp)
    return {
        "kind": "aggregated", "tp": str(tp), "pp": row["pp_size"], "attention_dp": str(attention_dp), "ep": str(ep),
    }  # fmt: skip


def disaggregated(row: Mapping[str, str]) -> Facts:
    """Return the layout of the decode workers of a disaggregated row, and the numbers of workers if stated."""
    attention_dp = row["decode_attention_dp_size"]
    batch = row["decode_batch_size"]
    return {
        "kind": "disaggregated", "tp": row["decode_tp_size"], "pp": row["decode_pp_size"], "attention_dp": attention_dp,
        "ep": str(max(int(row["decode_moe_ep_size"]), 1)), "prefill_workers": row["prefill_num_workers"],
        "decode_workers": row["decode_num_workers"], "batch": str(int(batch) * int(attention_dp)) if batch else "",
    }  # fmt: skip


def trtllm_rows(path: Path) -> Iterator[Facts]:
    """Yield the rows of TensorRT-LLM's own tables."""
    for number, row in enumerate(read(path), 1):
        kind, is_first_token = KINDS[row["kind"]], row["kind"] == "first token"
        version = {"static": "0.6.1", "first-token": "0.5", "saturated": "1.0"}[kind]
        yield {
            "row": f"trtllm-{number}", "source": "trtllm", "kind": kind, "file": f"v{version}", "engine": "trtllm",
            "version": version, "batch": row["batch"], "isl": row["isl"], "osl": row["osl"], "tp": row["tp"],
            "pp": row["pp"], "attention_dp": "1", "ep": "1", "model": row["model"], "gpu": row["gpu"],
            "precision": row["precision"], "per_gpu": str(int("per_gpu" in row["metric"])),
            "ttft_ms" if is_first_token else "tokens_per_s": digits(row["value"]),
        }  # fmt: skip


def splitwise_rows(path: Path) -> Iterator[Facts]:
    """Yield the rows of Splitwise's profile; all prompts of the batch share the time to the first token."""
    for number, row in enumerate(read(path), 1):
        yield {
            "row": f"splitwise-{number}", "source": "splitwise", "kind": "static", "file": "profile", "engine": "vllm",
            "version": "2023", "model": row["model"], "gpu": row["hardware"], "precision": "fp16",
            "isl": row["prompt_size"], "osl": row["token_size"], "batch": row["batch_size"],
            "tp": row["tensor_parallel"], "pp": "1", "attention_dp": "1", "ep": "1",
            "ttft_ms": digits(row["prompt_time_ms"]), "tpot_ms": digits(row["token_time_ms"]),
        }  # fmt: skip


def digits(value: str) -> str:
    """Return a number with seven digits."""
    return f"{float(value):.7g}"


def read(path: Path) -> Iterable[Facts]:
    """Return the rows of a CSV file, compressed or not."""
    data = path.read_bytes()
    text = (gzip.decompress(data) if path.suffix == ".gz" else data).decode()
    return csv.DictReader(io.StringIO(text, newline=""))


def write(path: Path, columns: Sequence[str], rows: Iterable[Facts]) -> None:
    """Write a compressed table; equal rows give equal bytes."""
    text = io.StringIO(newline="")
    writer = csv.DictWriter(text, columns, lineterminator="\n", restval="")
    writer.writeheader()
    writer.writerows(rows)
    path.write_bytes(gzip.compress(text.getvalue().encode(), 9, mtime=0))


if __name__ == "__main__":
    source = Path(sys.argv[1] if len(sys.argv) > 1 else "../shared/data/measured/serving")
    main(source, Path(sys.argv[2]) if len(sys.argv) > 2 else TARGET)
