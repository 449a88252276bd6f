"""Architecture of a Hugging Face config.json, by its ``model_type``."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from trine.errors import SpecError
from trine.workload.architecture.config_keys import Config, read_config
from trine.workload.architecture.families import decoders, encoders, hybrids, latent
from trine.workload.architecture.model import Architecture
from trine.workload.architecture.stored_weights import stored_form

Family = Callable[[Config], Architecture]


def _under_text(family: Family, tower: Callable[[Config, int], Any] | None = None) -> Family:
    """Return a family whose language model stands in ``text_config``, with a vision tower that is counted or not."""

    def read(config: Config) -> Architecture:
        if not config.has("text_config"):
            return family(config)
        text = config.part("text_config")
        model = family(text)
        text.check_used()
        tied = config.flag("tie_word_embeddings", default=model.tied_embeddings)
        model = replace(model, tied_embeddings=tied)
        if tower is None:
            note = "without its vision tower" if config.has("vision_config") else ""
            config.ignore("vision_config")
            return replace(model, notes=(note,) if note else ())
        vision = config.part("vision_config")
        towers = {"vision": tower(vision, model.hidden)}
        vision.check_used()
        return replace(model, towers=towers)

    return read


def _step3(config: Config) -> Architecture:
    """Step 3.7: transformers' class reads its sizes from ``text_config``, and builds 128,815 rows without one."""
    model = decoders.step3(config)
    note = "vision tower, and 128,815 rows of the embedding, by the defaults of transformers' class"
    return replace(model, vocab=128_815, towers={"vision": encoders.step3_tower(model.hidden)}, notes=(note,))


#: Families by ``model_type``.
FAMILIES: Mapping[str, Family] = {
    **dict.fromkeys(
        ("llama", "mistral", "ministral", "phi3", "smollm3", "granite", "yi", "internlm3", "seed_oss"),
        decoders.llama,
    ),
    **dict.fromkeys(("qwen2", "mimo"), decoders.qwen2),
    "qwen3": decoders.qwen3, "olmo2": decoders.olmo2, "exaone4": decoders.exaone4, "gemma2": decoders.gemma2,
    **dict.fromkeys(("gemma3_text", "gemma3"), _under_text(decoders.gemma3)),
    "gemma4_text": decoders.gemma4, "mixtral": decoders.mixtral,
    **dict.fromkeys(("qwen2_moe", "qwen3_moe"), decoders.qwen_moe),
    **dict.fromkeys(("qwen3_vl", "qwen3_vl_moe"), _under_text(decoders.qwen_moe, encoders.qwen3_vl_tower)),
    "gpt_oss": decoders.gpt_oss,
    **dict.fromkeys(("llama4", "llama4_text"), _under_text(decoders.llama4)),
    "minimax_m2": decoders.minimax_m2, "minimax_m3": decoders.minimax_m3, "mimo_v2_flash": decoders.mimo_v2,
    "step3p7": _step3, "nemotron-nas": decoders.nemotron_nas, "falcon": decoders.falcon, "gpt_neox": decoders.gpt_neox,
    "gpt2": decoders.gpt2, "opt": decoders.opt, "bloom": decoders.bloom, "glm4_moe": decoders.glm4_moe,
    **dict.fromkeys(("deepseek_v2", "deepseek_v3", "deepseek_v32", "kimi_k2", "glm_moe_dsa"), latent.deepseek),
    "deepseek_v4": latent.deepseek_v4,
    "kimi_k25": _under_text(latent.deepseek, lambda vision, _: encoders.kimi_tower(vision)),
    "kimi_k3": _under_text(latent.kimi_linear, lambda vision, _: encoders.kimi_tower(vision)),
    "kimi_linear": latent.kimi_linear,
    **dict.fromkeys(("qwen3_next", "qwen3_5", "qwen3_5_text", "qwen3_5_moe", "qwen3_5_moe_text"),
                    _under_text(hybrids.qwen3_next)),
    "nemotron_h": hybrids.nemotron_h, "jamba": hybrids.jamba, "mamba2": hybrids.mamba2,
    **dict.fromkeys(("bert", "roberta"), encoders.bert),
    "t5": encoders.t5, "vit": encoders.vit, "clip": encoders.clip, "gemma4": encoders.gemma4_multimodal,
}  # fmt: skip


def load_config(path: str | Path) -> Architecture:
    """Return the architecture of a config.json, or of a folder with one; see :func:`architecture_of`."""
    path = Path(path)
    if path.is_dir():
        folder = path
    elif path.name == "config.json":
        folder = path.parent
    else:
        folder = path.with_suffix("")
    file = path / "config.json" if path.is_dir() else path
    return architecture_of(read_config(path), str(file), folder.resolve().name)


def architecture_of(content: Mapping[str, Any], file: str, name: str) -> Architecture:
    """Return the architecture of a config's keys. file: named in errors; name: of a model that has none.

    Raises SpecError for a damaged file, an unknown ``model_type`` (:func:`_same_family`), a missing or impossible
    size, and a key that changes the model in an unknown way.
    """
    config = Config(content, file)
    kind = config.text("model_type")
    family = FAMILIES.get(kind)
    if family is None:
        message = f"{kind[:60]!r} is unknown to trine{_same_family(kind)}" if kind else "is missing"
        raise SpecError(message, file=file, field="model_type")
    try:
        model = family(config)
    except SpecError:
        raise
    except ValueError as error:
        raise SpecError(str(error), file=file) from None
    config.check_used()
    name = config.text("_name_or_path") or name or kind
    return replace(model, name=name.rsplit("/", 1)[-1], file=file, stored=stored_form(config))


def _same_family(kind: str) -> str:
    """Return a hint for an unknown ``model_type``: its known spelling, else where the known ones are listed.

    A program writes this key, so a name with other letters or digits is another family, and no typing error.
    """
    plain = _letters(kind)
    for known in FAMILIES:
        if _letters(known) == plain:
            return f"; did you mean {known!r}?"
    return (
        f"; 'trine help guides/models' lists the {len(FAMILIES)} known ones, and how to write the model as a file of "
        "layers"
    )


def _letters(kind: str) -> str:
    """Return the letters and digits of a name, in lower case."""
    return "".join(character for character in kind.lower() if character.isalnum())
