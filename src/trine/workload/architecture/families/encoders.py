"""Encoders: BERT, RoBERTa, ViT, CLIP, and the vision towers beside language models; encoder-decoders: T5."""

from __future__ import annotations

from dataclasses import replace
from typing import Literal

from trine.workload.architecture.blocks import Attention, Mlp
from trine.workload.architecture.config_keys import Config
from trine.workload.architecture.families.common import activation, attention, frame, num_layers, per_head
from trine.workload.architecture.families.decoders import gemma4
from trine.workload.architecture.model import Architecture, Layer, Tower


def bert(config: Config) -> Architecture:
    """BERT and RoBERTa: norms after the additions, learned positions and segments, a pooler."""
    hidden = config.size("hidden_size")
    rows = config.size("max_position_embeddings")
    layer = _biased_layer(config, "intermediate_size")
    return frame(
        config, [layer] * num_layers(config), norm="layer", final_norm=False, embedding_norm=True, positions=rows,
        token_types=config.size("type_vocab_size", default=2), head=False, sequence=min(rows, 512),
        further={"pooler": (hidden, hidden), "pooler.bias": (hidden,)}, tied_embeddings=True,
    )  # fmt: skip


def _biased_layer(config: Config, ffn: str, *, is_gated: bool = False) -> Layer:
    """Return a layer of an encoder with biases everywhere and norms with a bias."""
    network = Mlp(ffn=config.size(ffn), gated=is_gated, biases=True, activation=activation(config, default="gelu"))
    return Layer(mixer=attention(config, biases="all", causal=False, rotary=False), feed_forward=network, norm="layer")


def t5(config: Config) -> Architecture:
    """T5: an encoder, and a decoder that also attends to its output; a table of relative positions in each."""
    hidden, heads = config.size("d_model"), config.size("num_heads")
    size, buckets = config.size("d_kv"), config.size("relative_attention_num_buckets", default=32)
    config.ignore("relative_attention_max_distance", "num_decoder_layers", "scale_decoder_outputs")
    form = config.text("feed_forward_proj", default="relu")
    is_gated = form.startswith("gated-")
    network = Mlp(ffn=config.size("d_ff"), gated=is_gated, activation=form.removeprefix("gated-"))
    attends = Attention(heads=heads, kv_heads=heads, head_size=size, causal=False, rotary=False)
    masked = Attention(heads=heads, kv_heads=heads, head_size=size, rotary=False)
    count = config.count("num_layers")
    encoder = Tower(
        hidden=hidden, layers=(Layer(mixer=attends, feed_forward=network),) * count,
        further={"final_norm": (hidden,), "positions": (buckets, heads)},
    )  # fmt: skip
    decoder = Layer(mixer=masked, cross=attends, feed_forward=network, norms=3)
    layers = [decoder] * config.count("num_decoder_layers", default=count)
    return frame(
        config, layers, hidden=hidden, towers={"encoder": encoder},
        further={"positions": (buckets, heads)}, sequence=512, max_positions=512,
        tied_embeddings=config.flag("tie_word_embeddings", default=True),
    )  # fmt: skip


def vit(config: Config) -> Architecture:
    """ViT: an encoder of patches with a classifier; written as a model without a table of tokens."""
    hidden, patch, image = config.size("hidden_size"), config.size("patch_size"), config.size("image_size")
    channels, classes = config.size("num_channels", default=3), config.size("num_labels", default=1000)
    config.ignore("id2label", "label2id", "encoder_stride", "pooler_act", "pooler_output_size", "qkv_bias")
    tokens = (image // patch) ** 2 + 1
    layer = _biased_layer(config, "intermediate_size")
    further = {
        "cls": (hidden,), "positions": (tokens, hidden), "patches": (hidden, channels * patch * patch),
        "patches.bias": (hidden,), "classifier": (classes, hidden), "classifier.bias": (classes,),
    }  # fmt: skip
    return Architecture(
        name="", hidden=hidden, vocab=0, layers=(layer,) * num_layers(config), sequence=tokens, max_positions=tokens,
        norm="layer", head=False, tied_embeddings=True, further=further, file=config.file,
    )  # fmt: skip


def clip(config: Config) -> Architecture:
    """CLIP: an encoder of text and an encoder of images, each with a projection to common features."""
    text, vision = config.part("text_config"), config.part("vision_config")
    projected = config.size("projection_dim", default=512)
    hidden, rows = text.size("hidden_size"), text.size("max_position_embeddings")
    pixels, patch, image = vision.size("hidden_size"), vision.size("patch_size"), vision.size("image_size")
    tokens = (image // patch) ** 2 + 1
    tower = Tower(
        hidden=pixels, layers=(_biased_layer(vision, "intermediate_size"),) * num_layers(vision), tokens=tokens,
        further={
            "class": (pixels,), "patches": (pixels, vision.size("num_channels", default=3) * patch * patch),
            "positions": (tokens, pixels), "norms": (4, pixels), "projection": (projected, pixels),
        },
    )  # fmt: skip
    layer, rows_of_tokens = _biased_layer(text, "intermediate_size"), text.size("vocab_size")
    layers = (layer,) * num_layers(text)
    for part in (text, vision):
        part.ignore("projection_dim")
        part.check_used()
    return Architecture(
        name="", hidden=hidden, vocab=rows_of_tokens, layers=layers, sequence=rows,
        max_positions=rows, norm="layer", positions=rows, head=False, tied_embeddings=True, towers={"vision": tower},
        further={"projection": (projected, hidden), "temperature": ()}, file=config.file,
    )  # fmt: skip


def gemma4_multimodal(config: Config) -> Architecture:
    """Gemma 4 with its vision tower."""
    text, vision = config.part("text_config"), config.part("vision_config")
    model, pixels = gemma4(text), vision.size("hidden_size")
    mixer = attention(vision, norms="heads", causal=False)
    network = Mlp(ffn=vision.size("intermediate_size"), activation=activation(vision, default="gelu_pytorch_tanh"))
    rows, patch = vision.size("position_embedding_size"), vision.size("patch_size")
    tower = Tower(
        hidden=pixels, layers=(Layer(mixer=mixer, feed_forward=network, norms=4),) * num_layers(vision),
        tokens=vision.size("default_output_length", default=280) * vision.size("pooling_kernel_size", default=3) ** 2,
        further={
            "positions": (2, rows, pixels), "patches": (pixels, 3 * patch * patch), "projector": (model.hidden, pixels),
        },
    )  # fmt: skip
    vision.ignore(
        "max_position_embeddings",
        "global_head_dim",
        "image_seq_length",
        "video_seq_length",
        "standardize",
        "use_clipped_linears",
    )
    return with_tower(model, tower, text, vision)


def with_tower(model: Architecture, tower: Tower, *parts: Config) -> Architecture:
    """Return a model with a vision tower, after a check that all keys of its sections were used."""
    for part in parts:
        part.check_used()
    return replace(model, towers={"vision": tower})


def qwen3_vl_tower(vision: Config, hidden: int) -> Tower:
    """Return Qwen3-VL's vision tower; outputs of three layers also enter the language model (DeepStack)."""
    pixels, heads = vision.size("hidden_size"), vision.size("num_heads")
    patch, frames = vision.size("patch_size"), vision.size("temporal_patch_size", default=2)
    merged = pixels * vision.size("spatial_merge_size", default=2) ** 2
    size = per_head(vision, "num_heads", heads, pixels)
    mixer = Attention(heads=heads, kv_heads=heads, head_size=size, biases="all", causal=False)
    network = Mlp(ffn=vision.size("intermediate_size"), gated=False, biases=True, activation=activation(vision))
    further: dict[str, tuple[int, ...]] = {
        "patches": (pixels, vision.size("in_channels", default=3) * frames * patch * patch), "patches.bias": (pixels,),
        "positions": (vision.size("num_position_embeddings"), pixels), "merger.norm": (2, pixels),
    }  # fmt: skip
    further |= _projector("merger", merged, merged, hidden)
    for number in range(len(vision.items("deepstack_visual_indexes"))):
        further |= {f"deep.{number}.norm": (2, merged), **_projector(f"deep.{number}", merged, merged, hidden)}
    vision.ignore("out_hidden_size")
    layers = (Layer(mixer=mixer, feed_forward=network, norm="layer"),) * vision.count("depth")
    return Tower(hidden=pixels, layers=layers, further=further)


def _projector(name: str, features_in: int, inner: int, out: int) -> dict[str, tuple[int, ...]]:
    """Return the weights of two products with biases."""
    return {
        f"{name}.in": (inner, features_in), f"{name}.in.bias": (inner,), f"{name}.out": (out, inner),
        f"{name}.out.bias": (out,),
    }  # fmt: skip


def kimi_tower(vision: Config) -> Tower:
    """Return the vision tower of Kimi K2.5 and K3 (MoonViT): positions in space and time, and a projector."""
    pixels, heads = vision.size("vt_hidden_size"), vision.size("vt_num_attention_heads")
    inner = vision.size("qkv_hidden_size", default=pixels)
    has_biases = vision.flag("linear_bias", default=True)
    rows = vision.size("init_pos_emb_height"), vision.size("init_pos_emb_width")
    patch, hidden = vision.size("patch_size"), vision.size("text_hidden_size")
    kernel = vision.whole_items("merge_kernel_size", least=1) or [2, 2]
    if len(kernel) != 2:
        vision.fail("merge_kernel_size", f"must have two numbers, got {len(kernel)}")
    mixer = Attention(
        heads=heads, kv_heads=heads, head_size=per_head(vision, "vt_num_attention_heads", heads, inner), causal=False,
        biases="all" if vision.flag("attn_bias", default=True) else "none",
    )  # fmt: skip
    network = Mlp(ffn=vision.size("vt_intermediate_size"), gated=False, biases=has_biases)
    norm: Literal["rms", "layer"] = "rms" if vision.text("norm_type") == "rmsnorm" else "layer"
    vectors = 1 if norm == "rms" else 2
    merged = pixels * kernel[0] * kernel[1]
    further: dict[str, tuple[int, ...]] = {
        "patches": (pixels, 3 * patch * patch), "positions": (*rows, pixels), "final_norm": (vectors, pixels),
        "projector.norm": (2, vision.size("mm_hidden_size", default=pixels)),
    }  # fmt: skip
    if vision.flag("patch_embed_proj_bias", default=True):
        further["patches.bias"] = (pixels,)
    further |= _projector("projector", merged, merged, hidden)
    vision.ignore("init_pos_emb_time", "merge_type", "mm_projector_type", "pos_emb_type", "projector_hidden_act",
                  "projector_ln_eps", "video_attn_type", "activation_func", "mlp_type",
                  "pos_emb_interpolation_mode")  # fmt: skip
    count = vision.count("vt_num_hidden_layers")
    return Tower(hidden=pixels, layers=(Layer(mixer=mixer, feed_forward=network, norm=norm),) * count, further=further)


def step3_tower(hidden: int) -> Tower:
    """Return Step 3.7's vision tower, whose sizes are those of its class because its config has none."""
    pixels, heads, image, patch = 1536, 16, 728, 14
    mixer = Attention(heads=heads, kv_heads=heads, head_size=pixels // heads, biases="all", causal=False)
    network = Mlp(ffn=8960, gated=False, biases=True, activation="quick_gelu")
    further = {
        "patches": (pixels, 3 * patch * patch), "positions": ((image // patch) ** 2, pixels), "norm": (2, pixels),
        "down.1": (2 * pixels, pixels * 9), "down.1.bias": (2 * pixels,), "down.2": (4 * pixels, 2 * pixels * 9),
        "down.2.bias": (4 * pixels,), "projector": (hidden, 4 * pixels),
    }  # fmt: skip
    layer = Layer(mixer=mixer, feed_forward=network, norm="layer", scales=True)
    return Tower(hidden=pixels, layers=(layer,) * 47, further=further)
