"""The form of a checkpoint's quantised weights, by the ``quantization_config`` of its config.json."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from trine.workload.architecture.config_keys import Config

#: Forms by the ``format`` of compressed-tensors; the method alone does not tell 8 bits from 4.
_FORMATS = {"nvfp4-pack-quantized": "nvfp4", "mxfp4-pack-quantized": "mxfp4", "int-quantized": "w8a8"}
#: Methods whose weights are integers of ``bits`` bits, multiplied in 16 bits.
_INTEGER_METHODS = ("awq", "gptq", "gptq_marlin", "awq_marlin", "auto-round", "auto_round")
#: Keys of which one names the form of the weights.
_DECIDING = ("quant_method", "quant_algo", "format")
#: Part of the names in ``ignore`` that leaves attention in 16 bits.
_ATTENTION = "self_attn"


def stored_form(config: Config) -> str:
    """Return the form of quantised weights, as the config or its language model's part names it; empty for 16 bits.

    Integers that are multiplied in 16 bits are ``w4a16`` or ``w8a16`` by their bits, ``w4a16-experts`` if attention
    stays in 16 bits; 8-bit integers with 8-bit activations are ``w8a8``. Raises SpecError for a section without keys or
    without a method, and for bits that are no integer.
    """
    found = config.get("quantization_config", default={})
    text = config.get("text_config", default={})
    if not found and isinstance(text, Mapping):
        found = text.get("quantization_config") or {}
    if not isinstance(found, Mapping):
        config.fail("quantization_config", "must be a section of keys")
    _check(config, found)
    return _form(found)


def _check(config: Config, section: Mapping[str, Any]) -> None:
    """Raise SpecError for a section whose method or bits decide nothing."""
    method, bits = section.get("quant_method", ""), section.get("bits", 4)
    if not isinstance(method, str):
        config.fail("quantization_config.quant_method", f"must be a text such as awq, got {str(method)[:40]!r}")
    if section and not any(section.get(key) for key in _DECIDING):
        config.fail("quantization_config", "has no quant_method, which names the form of the weights, such as awq")
    if method.lower() in _INTEGER_METHODS and (isinstance(bits, bool) or not isinstance(bits, int)):
        config.fail("quantization_config.bits", f"must be an integer such as 4, got {str(bits)[:40]!r}")


def _form(section: Mapping[str, Any]) -> str:
    method, layout = str(section.get("quant_method", ""))[:40], str(section.get("format", ""))
    if str(section.get("quant_algo", "")).upper().startswith("NVFP4"):
        return "nvfp4"
    if layout in _FORMATS:
        return _FORMATS[layout]
    if layout == "pack-quantized":
        return _integers(_group_bits(section), section.get("ignore"))
    if method.lower() in _INTEGER_METHODS:
        return _integers(section.get("bits", 4), section.get("modules_to_not_convert"))
    has_scheme = "activation_scheme" in section
    if method == "fp8" and has_scheme and not section.get("weight_block_size"):
        return "fp8-tensor"
    return method


def _group_bits(section: Mapping[str, Any]) -> Any:
    """Return the bits of the weights of the first group of compressed-tensors; 4 if it states none."""
    groups = section.get("config_groups")
    if not isinstance(groups, Mapping):
        return 4
    for group in groups.values():
        weights = group.get("weights") if isinstance(group, Mapping) else None
        if isinstance(weights, Mapping) and "num_bits" in weights:
            return weights["num_bits"]
    return 4


def _integers(bits: Any, ignored: Any) -> str:
    """Return the form of integers; ``ignored`` lists the modules that stay in 16 bits."""
    names = ignored if isinstance(ignored, list) else []
    experts_only = any(_ATTENTION in str(name) for name in names)
    return f"w{str(bits)[:4]}a16" + ("-experts" if experts_only else "")
