"""Write presets/models/NAME.yaml for public Hugging Face configs: the keys that trine reads, and the parameters.

    python benchmarks/bundle_models.py FOLDER

FOLDER holds ``OWNER--MODEL.json`` files. Facts about the models only: keys that change nothing are left out.
"""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path
from typing import Any

import yaml

from trine.workload.architecture.config_keys import harmless_keys
from trine.workload.architecture.huggingface import load_config

MODELS = Path(__file__).parents[1] / "src" / "trine" / "presets" / "models"
#: Keys that are harmless but describe the model.
KEPT = {"model_type", "quantization_config", "max_position_embeddings", "tie_word_embeddings", "use_sliding_window",
        "max_window_layers", "hidden_act", "num_hash_layers", "chunk_size", "expand", "no_rope_layers",
        "no_rope_layer_interval"}  # fmt: skip
#: Names of models whose file has another one.
NAMES = {
    "Meta-Llama-3.1-405B": "", "Meta-Llama-3.1-70B": "", "Meta-Llama-3.1-8B": "", "gpt2": "", "gpt2-medium": "",
    "gpt2-xl": "", "bert-base-uncased": "",
    "bert-large-uncased": "", "t5-small": "", "t5-large": "", "bloom": "", "Llama-2-7b-hf": "",
    "Phi-3-mini-4k-instruct": "phi-3-mini", "vit-base-patch16-224": "vit-base", "NVIDIA-Nemotron-3-Nano-30B-A3B-BF16":
    "nemotron-3-nano-30b-a3b", "NVIDIA-Nemotron-3-Super-120B-A12B-FP8": "nemotron-3-super-120b-a12b",
    "NVIDIA-Nemotron-3-Ultra-550B-A55B-BF16": "nemotron-3-ultra-550b-a55b", "Nemotron-H-56B-Base-8K": "nemotron-h-56b",
    "Llama-3_3-Nemotron-Super-49B-v1": "llama-3.3-nemotron-super-49b", "Mistral-7B-v0.1": "mistral-7b",
    "Mixtral-8x7B-v0.1": "", "Mixtral-8x22B-v0.1": "", "DeepSeek-V3.1-NVFP4": "", "Llama-3.1-70B-Instruct-FP8": "",
    "Qwen3-235B-A22B-NVFP4": "", "Qwen3-32B-FP8": "", "Gemma-4-31B-IT-NVFP4": "gemma-4-31b",
    "Llama-4-Scout-17B-16E-Instruct": "llama-4-scout", "Llama-4-Maverick-17B-128E-Instruct": "llama-4-maverick",
    "Mistral-Nemo-Instruct-2407": "mistral-nemo", "CodeLlama-34b-Instruct-hf": "codellama-34b",
    "Jamba-v0.1": "jamba-v0.1", "MiMo-7B-Base": "mimo-7b", "clip-vit-base-patch32": "clip-vit-base",
}  # fmt: skip


def name_of(file: Path) -> str:
    """Return the preset's name of a config; empty for a model that trine has already."""
    model = file.stem.partition("--")[2]
    found = NAMES.get(model)
    return re.sub(r"-(instruct|hf)$", "", model.lower()) if found is None else found


def trimmed(keys: dict[str, Any]) -> dict[str, Any]:
    """Return the keys that say something about the model."""
    harmless = harmless_keys() - KEPT
    found = {}
    for key, value in keys.items():
        if key in harmless or value is None or key == "auto_map":
            continue
        found[key] = trimmed(value) if key in ("text_config", "vision_config") else value
    if isinstance(found.get("quantization_config"), dict):
        found["quantization_config"] = {"quant_method": found["quantization_config"].get("quant_method", "")}
    return found


def main() -> None:
    """Write one file for each config."""
    known = {file.stem for file in MODELS.glob("*.yaml")}
    for file in sorted(Path(sys.argv[1]).glob("*.json")):
        name = name_of(file)
        path = MODELS / f"{name}.yaml"
        if not name or (name in known and "family: huggingface" not in path.read_text()):
            continue
        model = load_config(file)
        source = file.stem.replace("--", "/", 1)
        content = {
            "family": "huggingface", "parameters": model.num_parameters,
            "sources": {"shapes": f"config.json of {source} on Hugging Face", "parameters": "that follow from them"},
            "config": trimmed(json.loads(file.read_text())),
        }  # fmt: skip
        text = yaml.safe_dump(content, sort_keys=False, width=118, default_flow_style=None)
        path.write_text(f"# {source}\n{text}")
        print(name, f"{model.num_parameters:,}")


if __name__ == "__main__":
    main()
