"""Is an operator's kind told from its name?"""

from __future__ import annotations

import pytest

from trine.compute import kind_of
from trine.compute.kinds import FAMILIES, family_of
from trine.graph.workload import Operator

AUTOGRAD = "autograd::engine::evaluate_function: "
KINDS = {
    "aten::conv2d": "conv",
    "aten::convolution": "conv",
    "aten::_convolution": "conv",
    "aten::cudnn_convolution": "conv",
    "aten::conv_transpose2d": "conv",
    "aten::convolution_backward": "conv backward",
    AUTOGRAD + "ConvolutionBackward0": "conv backward",
    "aten::linear": "linear",
    "aten::addmm": "linear",
    "aten::mm": "linear",
    AUTOGRAD + "AddmmBackward0": "linear backward",
    AUTOGRAD + "MmBackward0": "linear backward",
    "aten::matmul": "matmul",
    "aten::bmm": "matmul",
    "aten::baddbmm": "matmul",
    AUTOGRAD + "BmmBackward0": "matmul backward",
    "aten::scaled_dot_product_attention": "attention",
    "aten::_scaled_dot_product_flash_attention": "attention",
    AUTOGRAD + "ScaledDotProductEfficientAttentionBackward0": "attention backward",
    AUTOGRAD + "ScaledDotProductFlashAttentionForCpuBackward0": "attention backward",
    "aten::batch_norm": "batch_norm",
    AUTOGRAD + "CudnnBatchNormBackward0": "batch_norm backward",
    "aten::native_batch_norm_backward": "batch_norm backward",
    "aten::layer_norm": "layer_norm",
    AUTOGRAD + "NativeLayerNormBackward0": "layer_norm backward",
    "aten::group_norm": "group_norm",
    "aten::max_pool2d": "max_pool",
    AUTOGRAD + "MaxPool2DWithIndicesBackward0": "max_pool backward",
    "aten::avg_pool2d": "avg_pool",
    "aten::adaptive_avg_pool2d": "adaptive_pool",
    AUTOGRAD + "AdaptiveAvgPool2DBackward0": "adaptive_pool backward",
    "aten::relu_": "elementwise",
    "aten::gelu": "elementwise",
    "aten::silu": "elementwise",
    "aten::add_": "elementwise",
    "aten::mul": "elementwise",
    "aten::dropout": "elementwise",
    AUTOGRAD + "NativeDropoutBackward0": "elementwise backward",
    AUTOGRAD + "ReluBackward0": "elementwise backward",
    "aten::threshold_backward": "elementwise backward",
    AUTOGRAD + "torch::autograd::AccumulateGrad": "elementwise",
    "aten::_softmax": "softmax",
    "aten::_softmax_backward_data": "softmax backward",
    "aten::embedding": "embedding",
    "aten::embedding_dense_backward": "embedding backward",
    "aten::cross_entropy_loss": "loss",
    "aten::nll_loss_forward": "loss",
    "aten::_log_softmax": "loss",
    AUTOGRAD + "NllLossBackward0": "loss backward",
    AUTOGRAD + "LogSoftmaxBackward0": "loss backward",
    "aten::copy_": "copy",
    "aten::cat": "copy",
    "aten::ones_like": "copy",
    "aten::transpose": "view",
    AUTOGRAD + "SplitBackward0": "copy backward",
    AUTOGRAD + "ExpandBackward0": "reduction backward",
    "aten::sum": "reduction",
    AUTOGRAD + "MeanBackward1": "reduction backward",
    "aten::_foreach_addcdiv_": "optimizer",
    "aten::_fused_adam_": "optimizer",
    "myext::fancy_kernel": "other",
    "": "other",
}


@pytest.mark.parametrize(("name", "kind"), KINDS.items())
def test_kind(name: str, kind: str) -> None:
    operator = Operator(id=1, name=name, phase="forward", inputs=(), outputs=(), gpu_time_ps=1)
    assert kind_of(operator) == kind
    assert family_of(kind) in FAMILIES
