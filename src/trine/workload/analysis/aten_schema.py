"""Families of PyTorch operators, and the roles of their tensor arguments: weights, buffers and data.

Names and positions follow PyTorch's native_functions.yaml, without underscores around the name.
"""

from __future__ import annotations

#: Calls that create memory or view it in another way; inside another call, the outer call defines the tensor.
MAKERS = frozenset({
    "empty", "empty_strided", "empty_like", "new_empty", "new_empty_strided", "zeros", "ones", "full", "new_zeros",
    "new_ones", "new_full", "rand", "randn", "randint", "random", "uniform", "normal", "arange", "scalar_tensor",
    "tensor", "lift_fresh", "resize", "set", "as_strided", "eye", "linspace", "tril_indices", "triu_indices",
})  # fmt: skip
#: Makers whose result a step may read as data; the results of the others do not depend on data.
DATA_MAKERS = frozenset({"rand", "randn", "randint", "random", "uniform", "normal", "tensor", "lift_fresh", "empty"})

CONVOLUTIONS = frozenset({
    "conv1d", "conv2d", "conv3d", "convolution", "convolution_overrideable", "cudnn_convolution", "miopen_convolution",
    "mkldnn_convolution", "thnn_conv2d", "slow_conv2d_forward", "slow_conv3d", "conv_depthwise2d", "conv_depthwise3d",
    "conv_transpose1d", "conv_transpose2d", "conv_transpose3d", "cudnn_convolution_transpose", "cudnn_convolution_relu",
})  # fmt: skip
MATMULS = frozenset({"mm", "bmm", "matmul", "addmm", "baddbmm", "addbmm", "addmm_activation", "scaled_mm"})
NORMS = frozenset({"layer_norm", "native_layer_norm", "group_norm", "native_group_norm", "rms_norm", "fused_rms_norm"})
BATCH_NORMS = frozenset({
    "batch_norm", "batch_norm_impl_index", "cudnn_batch_norm", "native_batch_norm", "miopen_batch_norm",
    "instance_norm", "batch_norm_with_update", "native_batch_norm_legit",
})  # fmt: skip
ATTENTION = frozenset({
    "scaled_dot_product_attention", "scaled_dot_product_flash_attention", "scaled_dot_product_efficient_attention",
    "scaled_dot_product_cudnn_attention", "scaled_dot_product_flash_attention_for_cpu",
    "scaled_dot_product_attention_math",
})  # fmt: skip
POOLS = frozenset({
    f"{prefix}{kind}_pool{n}d{suffix}"
    for prefix in ("", "adaptive_") for kind in ("max", "avg") for n in (1, 2, 3) for suffix in ("", "_with_indices")
})  # fmt: skip
RECURRENT = frozenset({"lstm", "gru", "rnn_tanh", "rnn_relu", "cudnn_rnn", "miopen_rnn"})
LOSSES = frozenset({
    "cross_entropy_loss", "nll_loss", "nll_loss_nd", "nll_loss2d", "nll_loss_forward", "nll_loss2d_forward", "mse_loss",
    "l1_loss", "smooth_l1_loss", "binary_cross_entropy", "binary_cross_entropy_with_logits", "kl_div", "huber_loss",
})  # fmt: skip
REDUCTIONS = frozenset({
    "sum", "mean", "amax", "amin", "max", "min", "argmax", "argmin", "prod", "logsumexp", "norm", "linalg_vector_norm",
    "var", "std", "var_mean", "any", "all", "nansum",
})  # fmt: skip
VIEWS = frozenset({"view", "reshape", "unsafe_view", "flatten", "unflatten", "reshape_alias", "squeeze", "unsqueeze"})

#: Positions, among the tensor inputs, of weights, buffers and data.
WEIGHT_POSITIONS: dict[str, tuple[int, ...]] = {
    **dict.fromkeys(CONVOLUTIONS, (1, 2)),
    **dict.fromkeys(BATCH_NORMS, (1, 2)),
    **dict.fromkeys(NORMS, (1, 2)),
    "linear": (1, 2),
    "embedding": (0,),
    "prelu": (1,),
    "lstm": tuple(range(3, 64)),
    **dict.fromkeys(("gru", "rnn_tanh", "rnn_relu"), tuple(range(2, 64))),
}
BUFFER_POSITIONS: dict[str, tuple[int, ...]] = dict.fromkeys(BATCH_NORMS, (3, 4))
DATA_POSITIONS: dict[str, tuple[int, ...]] = {
    **dict.fromkeys((*CONVOLUTIONS, *BATCH_NORMS, *NORMS, *POOLS, *RECURRENT), (0,)),
    **dict.fromkeys(("linear", "dropout", "native_dropout"), (0,)),
    **dict.fromkeys(("mm", "bmm", "matmul"), (0, 1)),
    **dict.fromkeys(("addmm", "baddbmm", "embedding"), (1,)),
    **dict.fromkeys(LOSSES, (0, 1)),
    **dict.fromkeys(ATTENTION, (0, 1, 2)),
}
