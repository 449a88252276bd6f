"""Model files: presets/models/*.yaml by name, or files by path, with the family of their model or a config.json."""

from __future__ import annotations

import os
from collections.abc import Mapping
from functools import cache
from pathlib import Path

from trine.common.inputs import read_text
from trine.errors import SpecError, as_known, nearest
from trine.workload.synthesis.model_names import FOLDER, known_models
from trine.workload.synthesis.spec import Bert, Densenet, EncoderDecoder, ModelSpec, Resnet, Transformer, Vgg

#: Values of ``family`` in a file.
FAMILIES: dict[str, type[ModelSpec]] = {
    "transformer": Transformer, "bert": Bert, "t5": EncoderDecoder, "vgg": Vgg, "resnet": Resnet, "densenet": Densenet,
}  # fmt: skip


def check_transformer(spec: Transformer, file: str) -> None:
    """Raise SpecError, naming the field, for invalid shapes of a transformer."""
    checks = (
        ("kv_heads", spec.heads % spec.kv_heads == 0, f"must divide the {spec.heads} heads"),
        ("experts", spec.experts is None or spec.experts.top_k <= spec.experts.count, "top_k must be at most count"),
        ("experts", spec.experts is None or spec.activation == "swiglu", "experts must have the activation swiglu"),
        ("experts", spec.experts is None or spec.biases != "all", "experts have no biases: biases cannot be all"),
        ("qk_norm", not spec.qk_norm or spec.rotates, "needs rotary positions"),
        ("alibi", not spec.alibi or spec.max_positions is None, "replaces learned positions: leave out max_positions"),
        ("sequence", spec.sequence <= (spec.max_positions or spec.sequence), "must be at most max_positions"),
    )
    for name, holds, message in checks:
        if not holds:
            raise SpecError(message, file=file, field=name)


def check_parameters(spec: Transformer | Bert | EncoderDecoder, file: str) -> None:
    """Raise SpecError if the file states another number of parameters than its shapes give."""
    if spec.parameters is not None and spec.parameters != spec.num_parameters:
        message = f"says {spec.parameters:,}, but the shapes make {spec.num_parameters:,}"
        raise SpecError(message, file=file, field="parameters")


#: Values of ``family`` in a file of layers over blocks, and in a file with the keys of a config.json.
LAYERED, CONFIG = "layers", "huggingface"


def check_family(family: object, file: str) -> str:
    """Return ``family`` if trine knows it; raises SpecError with the nearest name."""
    if not isinstance(family, str) or family not in FAMILIES:
        raise SpecError(f"must be one of {', '.join((*FAMILIES, LAYERED, CONFIG))}; got {str(family)[:40]!r}"
                        f"{nearest(str(family)[:80], FAMILIES)}", file=file, field="family")  # fmt: skip
    return str(family)


_SUFFIXES = (".yaml", ".yml", ".json")


def load_model(name_or_path: str | os.PathLike[str]) -> ModelSpec:
    """Return a model preset by its name, or read a model file (a path ends in .yaml, .yml or .json).

    Raises SpecError: unknown name (suggests the nearest), or a faulty file (names file and field).
    """
    text = os.fspath(name_or_path)
    if text.endswith(_SUFFIXES) or (Path(text) / "config.json").is_file():
        return _read(Path(text))
    text = as_known(text, known_models())
    if text not in known_models():
        hint = nearest(text.lower(), known_models(), is_listed=True)
        raise SpecError(f"unknown model {text[:80]!r} (a file ends in .yaml){hint}; 'trine trace models' lists all")
    return _preset(text)


@cache
def _preset(name: str) -> ModelSpec:
    return _read(FOLDER / f"{name}.yaml")


def _read(path: Path) -> ModelSpec:
    from trine.common.spec import check, load_mapping
    from trine.workload.architecture.config_files import is_config

    if is_config(path):
        from trine.workload.architecture.huggingface import load_config
        from trine.workload.architecture.known_forms import plain_form

        return plain_form(load_config(path))
    data = load_mapping(path)
    shapes = dict(data) if isinstance(data, Mapping) else {}
    if "family" not in shapes:
        from trine.common.recognise import foreign_file

        foreign = foreign_file(read_text(path), "")
        if foreign is not None:
            raise SpecError(foreign, file=path)
    if shapes.get("family") in (LAYERED, CONFIG):
        from trine.workload.architecture.files import read_bundled, read_layers
        from trine.workload.architecture.known_forms import plain_form

        return plain_form(read_layers(shapes, path) if shapes["family"] == LAYERED else read_bundled(shapes, path))
    family = check_family(shapes.pop("family", None), str(path))
    spec = check(FAMILIES[family], shapes, path, {"name": path.stem, "file": str(path)})
    if isinstance(spec, Transformer):
        check_transformer(spec, str(path))
    if isinstance(spec, Transformer | Bert | EncoderDecoder):
        check_parameters(spec, str(path))
    return spec
