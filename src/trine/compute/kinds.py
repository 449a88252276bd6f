"""Kind of work and layer of an operator, from names alone.

A kind is a family (``conv``, ``linear``, ``elementwise``, ...), followed by `` backward`` if the operator computes
the gradient of its family. Operators of one kind share one law of time (:mod:`trine.compute.law`).
"""

from __future__ import annotations

import re
from functools import lru_cache

from trine.graph.workload import Operator

#: Families whose time is set by arithmetic when they are large; all others move bytes.
COMPUTE_FAMILIES = ("attention", "conv", "linear", "matmul")
FAMILIES = (
    *COMPUTE_FAMILIES, "adaptive_pool", "avg_pool", "batch_norm", "copy", "elementwise", "embedding", "group_norm",
    "index", "layer_norm", "loss", "max_pool", "optimizer", "other", "reduction", "resample", "scan", "softmax", "view",
)  # fmt: skip
#: Families whose kernels have loops over tiles of several tensors: no program at the load-store level.
LOOP_FAMILIES = frozenset({"attention", "conv", "scan"})
BACKWARD_SUFFIX = " backward"

# Matched in this order against the whole name, in lower case without underscores ("maxpool2dwithindices").
_RULES: tuple[tuple[str, str], ...] = (
    ("optimizer", r"foreach.*|ampforeach.*|fused(adam|adamw|sgd|adagrad|lamb)"),
    ("attention", r".*(scaleddotproduct|flashattention|efficientattention|flexattention|cudnnattention).*"),
    ("scan", r".*(deltarule|statespacescan|selectivescan)"),
    ("conv", r".*convolution.*|(slow|thnn|cudnn|miopen)?conv(transpose|depthwise|dilated)?[123]d.*|conv.*tbc"),
    ("linear", r"linear|addmm|mm|scaledmm|int8?mm|addmv|mv"),
    ("matmul", r"matmul|bmm|baddbmm|addbmm|groupedmm|einsum|dot|vdot|inner|outer|addr|ger|bilinear|trilinear"),
    ("batch_norm", r".*batchnorm.*"),
    ("group_norm", r".*(group|instance)norm.*"),
    ("layer_norm", r".*(layer|rms)norm.*"),
    ("adaptive_pool", r"adaptive(max|avg)pool.*"),
    ("avg_pool", r".*avgpool.*"),
    ("max_pool", r".*maxpool.*"),
    ("resample", r".*upsample.*|.*interpolate.*|gridsampler?.*|affinegrid.*"),
    ("loss", r".*(crossentropy|loss|logsoftmax|kldiv).*"),
    ("softmax", r".*softmax.*"),
    ("elementwise", r".*rotary.*|.*rope"),
    ("embedding", r".*embedding.*"),
    ("index", r"(index|gather|scatter|take|put|masked|nonzero|topk|sort|argsort|unique|roll|flip|tri[lu]).*"),
    ("view", r"(t|numpyt|mt|view.*|reshape.*|transpose.*|permute|expand.*|unsqueeze|squeeze.*|detach|asstrided|alias"
             r"|slice|select(int)?|narrow|chunk|split.*|unbind.*|flatten.*|unflatten.*|unsafeview|movedim|swapaxes"
             r"|resolveconj|resolveneg|reshapealias|empty.*|resize|setdata)"),
    ("copy", r"(copy|cat|concat|stack|hstack|vstack|clone|contiguous|tocopy|to|type|constantpadnd|pad|reflectionpad.*"
             r"|replicationpad.*|repeat.*|tile|fill|zero|ones|zeros|full|newzeros|newones|newfull|.*like|arange|memcpy.*"
             r"|memset.*|copyslices|copybackwards|im2col|col2im|pixel(un)?shuffle|channelshuffle)"),
    ("reduction", r"(sum|mean|amax|amin|max|min|argmax|argmin|norm|varmean|var|std|stdmean|prod|any|all|cumsum|cumprod"
                  r"|logsumexp|linalgvectornorm|linalgnorm|sumtosize|countnonzero|isfinite|median|quantile|aminmax)(dim)?"),
    ("elementwise", r"(.*relu6?|silu|mish|elu|celu|selu|prelu|gelu|.*sigmoid|tanh|.*swish|softplus|softsign|tanhshrink"
                    r"|.*shrink|hardtanh|threshold|(swi|ge|re)?glu|add|sub|rsub|mul|div|truedivide|remainder|fmod|pow|sqrt|rsqrt|exp"
                    r"|expm1|log|log1p|log2|log10|neg|abs|sign|clamp.*|clip|maximum|minimum|where|lerp|addcmul|addcdiv"
                    r"|square|reciprocal|sin|cos|tan|atan2?|erf|erfc|erfinv|floor|ceil|round|trunc|frac|.*dropout.*"
                    r"|bernoulli|normal|uniform|random|randn?|randint|randperm|eq|ne|lt|le|gt|ge|logical.*|bitwise.*"
                    r"|isnan|isinf|nantonum|multiply|subtract|divide|copysign|accumulategrad|addrelu|addscalar)"),
)  # fmt: skip
_COMPILED = tuple((family, re.compile(pattern)) for family, pattern in _RULES)
_BACKWARD = re.compile(r"(.+?)_?backward(_?data|_?jvp|_?input|_?weight|_?reduce|_?elemt)?\d*", re.IGNORECASE)
_BLOCK = re.compile(r"(?:.*?\.)?\d+(?=\.)")
# Gradients of views that are no views: the gradient of a part is written into zeros, of a broadcast is summed.
_VIEW_GRADIENTS = {
    "slice": "copy", "select": "copy", "selectint": "copy", "narrow": "copy", "chunk": "copy", "split": "copy",
    "splitwithsizes": "copy", "unbind": "copy", "asstrided": "copy", "expand": "reduction",
}  # fmt: skip


def kind_of(operator: Operator) -> str:
    """Return the kind of ``operator``, such as ``"conv"`` or ``"conv backward"``; ``"other"`` for unknown names."""
    return kind_of_name(operator.name)


def family_of(kind: str) -> str:
    """Return the family of a kind: ``"conv backward"`` -> ``"conv"``."""
    return kind.removesuffix(BACKWARD_SUFFIX)


def is_backward(kind: str) -> bool:
    """Return whether operators of this kind compute the gradient of their family."""
    return kind.endswith(BACKWARD_SUFFIX)


def is_compute_bound(kind: str) -> bool:
    """Return whether the law of this kind has a term for FLOPs; other laws use bytes only."""
    return family_of(kind) in COMPUTE_FAMILIES


@lru_cache(maxsize=4096)
def kind_of_name(name: str) -> str:
    """Return the kind of operators of this name."""
    last = re.split(r"::|\.|:\s", name.strip())[-1].strip()
    gradient = _BACKWARD.fullmatch(last)
    base = (gradient[1] if gradient else last).replace("_", "").lower()
    base = re.sub(r"(?<=[a-z])\d+$", "", base) if gradient else base
    family = next((family for family, pattern in _COMPILED if pattern.fullmatch(base)), "other")
    if gradient and family == "view":
        family = _VIEW_GRADIENTS.get(base, "view")
    return family + BACKWARD_SUFFIX if gradient else family


@lru_cache(maxsize=65536)
def layer_of(layer: str) -> str:
    """Return the block of a layer: its name up to the first number if more follows, otherwise ``""``."""
    match = _BLOCK.match(layer)
    return match[0] if match else ""
