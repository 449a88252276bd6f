"""Training step of a convolutional network, with the operators that TrioSim's tracer records for torchvision's models.

Names are as in those traces (bundled: vgg13 and resnet50): ``conv2d.5`` is the fifth convolution. In-place activations
(``relu_``, ``add_``) share their memory. Sums of gradients at branches have no operator: autograd adds inside the
backward operators.

In mixed precision (``amp``: PyTorch's autocast to float16, with a scaled loss) weights stay float32. Each is copied to
float16 once a step, in the layer of the convolution or product that uses it; its gradient is copied back to float32
after that. Activations are float16; batch norm's statistics and the whole loss are float32. One operator checks and
unscales all gradients before the optimizer. Convolutions and products list the float32 weight among their inputs, so
that the weight's operator is known.
"""

from __future__ import annotations

from collections.abc import Sequence

from trine.graph.workload import Tensor
from trine.software.profile import Software
from trine.workload.raw_trace import AUTOGRAD
from trine.workload.synthesis.graph import NONE, Attributes, Graph
from trine.workload.synthesis.spec import Convolutional, Densenet, Resnet, Vgg
from trine.workload.synthesis.transformer import fixed_costs


def convnet(spec: Convolutional, *, batch: int, precision: str = "", software: Software | None = None) -> Graph:
    """Return the forward, backward and Adam step on ``batch`` images, with the operators of ``software``.

    precision: '': float32, with only convolutions in TF32, as in PyTorch. float32: nothing in TF32. tfloat32:
    convolutions and products in TF32. amp: see above.
    """
    mixed = precision == "amp"
    attributes: Attributes = {"precision": precision} if precision and not mixed else NONE
    dtype = "float16" if mixed else "float32"
    graph = Graph(dtype, accumulates=False, weight_dtype="float32", product_attributes=attributes, software=software)
    x = graph.tensor((batch, 3, spec.image, spec.image), role="input", dtype="float32")
    targets = graph.tensor((batch,), role="input", dtype="int64")
    _loss(graph, _logits(graph, spec, _input(graph, x)), targets)
    graph.run_backward()
    if mixed:
        graph.optimizer("aten::_amp_foreach_non_finite_check_and_unscale_", list(graph.gradients.values()))
    fixed_costs(graph, before=True)
    _adam(graph)
    fixed_costs(graph, before=False)
    return graph


def _input(graph: Graph, x: Tensor) -> Tensor:
    """Return the images, copied to the precision of the activations."""
    if x.dtype == graph.dtype:
        return x
    copy = graph.tensor(x.shape, role="input")
    graph.forward("aten::_to_copy", (x,), (copy,))
    return copy


# -- families ----------------------------------------------------------------------------------------------------


def _logits(graph: Graph, spec: Convolutional, x: Tensor) -> Tensor:
    if isinstance(spec, Vgg):
        return _vgg(graph, spec, x)
    return _resnet(graph, spec, x) if isinstance(spec, Resnet) else _densenet(graph, spec, x)


def _vgg(graph: Graph, spec: Vgg, x: Tensor) -> Tensor:
    for stage in spec.stages:
        for channels in stage:
            x = _relu(graph, _conv(graph, x, channels, 3, padding=1, biased=True))
        x = _max_pool(graph, x, 2, 2)
    x = _flat(graph, _average(graph, x, 7))
    for features in (4096, 4096):
        x = _dropout(graph, _relu(graph, _linear(graph, x, features)))
    return _linear(graph, x, spec.classes)


def _resnet(graph: Graph, spec: Resnet, x: Tensor) -> Tensor:
    x = _relu(graph, _norm(graph, _conv(graph, x, 64, 7, stride=2, padding=3)))
    x = _max_pool(graph, x, 3, 2, padding=1)
    for stage, count in enumerate(spec.blocks):
        for block in range(count):
            stride = 2 if stage and not block else 1
            x = _residual_block(graph, spec, x, 64 * 2**stage, stride)
    return _linear(graph, _flat(graph, _average(graph, x, 1)), spec.classes)


def _residual_block(graph: Graph, spec: Resnet, x: Tensor, width: int, stride: int) -> Tensor:
    out_channels = width * (4 if spec.bottleneck else 1)
    if spec.bottleneck:
        inner = width * spec.width // 64 * spec.groups
        h = _relu(graph, _norm(graph, _conv(graph, x, inner, 1)))
        h = _relu(graph, _norm(graph, _conv(graph, h, inner, 3, stride=stride, padding=1, groups=spec.groups)))
        h = _norm(graph, _conv(graph, h, out_channels, 1))
    else:
        h = _relu(graph, _norm(graph, _conv(graph, x, width, 3, stride=stride, padding=1)))
        h = _norm(graph, _conv(graph, h, width, 3, padding=1))
    if spec.squeeze:
        h = _excited(graph, h, out_channels // spec.squeeze)
    if stride > 1 or x.shape[1] != out_channels:
        x = _norm(graph, _conv(graph, x, out_channels, 1, stride=stride))
    return _relu(graph, _add(graph, h, x))


def _excited(graph: Graph, x: Tensor, narrow: int) -> Tensor:
    """Apply squeeze and excitation (Hu et al., 2018): scale each channel of x by a gate from all channels' means."""
    h = _relu(graph, _conv(graph, _average(graph, x, 1), narrow, 1, biased=True))
    h = _conv(graph, h, x.shape[1], 1, biased=True)
    shares = graph.like(h)
    op = graph.forward("aten::sigmoid", (h,), (shares,))
    _simple(graph, h, shares, op, "SigmoidBackward0", shares)
    out = graph.like(x)
    op = graph.forward("aten::mul", (x, shares), (out,))

    def backward() -> None:
        gradients = graph.like(x), graph.like(shares)
        graph.backward(f"{AUTOGRAD}MulBackward0", (graph.gradient(out), x, shares), gradients, op)
        graph.give(x, gradients[0], op)
        graph.give(shares, gradients[1], op)

    graph.on_backward(op, backward)
    return out


def _densenet(graph: Graph, spec: Densenet, x: Tensor) -> Tensor:
    x = _relu(graph, _norm(graph, _conv(graph, x, spec.initial, 7, stride=2, padding=3)))
    x = _max_pool(graph, x, 3, 2, padding=1)
    for number, count in enumerate(spec.blocks):
        if number:
            x = _conv(graph, _relu(graph, _norm(graph, x)), x.shape[1] // 2, 1)
            out = graph.tensor((*x.shape[:2], x.shape[2] // 2, x.shape[3] // 2))
            op = graph.forward("aten::avg_pool2d", (x,), (out,))
            x = _simple(graph, x, out, op, "AvgPool2DBackward0", x)
        features = [x]
        for _ in range(count):
            h = _relu(graph, _norm(graph, _concatenate(graph, features)))
            h = _relu(graph, _norm(graph, _conv(graph, h, 4 * spec.growth, 1)))
            features.append(_conv(graph, h, spec.growth, 3, padding=1))
        x = _concatenate(graph, features)
    x = _relu(graph, _norm(graph, x))
    return _linear(graph, _flat(graph, _average(graph, x, 1)), spec.classes)


# -- layers ------------------------------------------------------------------------------------------------------


def _conv(
    graph: Graph, x: Tensor, channels: int, kernel: int, *, stride: int = 1, padding: int = 0, groups: int = 1,
    biased: bool = False,
) -> Tensor:  # fmt: skip
    size = (x.shape[2] + 2 * padding - kernel) // stride + 1
    weight = graph.weight(channels, x.shape[1] // groups, kernel, kernel)
    weights = (weight, graph.weight(channels)) if biased else (weight,)
    out = graph.tensor((x.shape[0], channels, size, size))
    options = {"stride": [stride] * 2, "padding": [padding] * 2, **graph.product_attributes}
    if groups > 1:
        options["groups"] = groups
    layer = graph.next_layer("aten::conv2d")
    copies = _copies(graph, weights, layer)
    op = graph.forward("aten::conv2d", (x, *weights), (out,), layer, options)

    def backward() -> None:
        dy = graph.gradient(out)
        gradients = _raw_gradients(graph, weights)
        # An absent (empty) output marks that the gradient of the data is not computed.
        dx = graph.tensor((0,), batch_dims=()) if x.role == "input" else graph.like(x)
        maker = graph.backward(f"{AUTOGRAD}ConvolutionBackward0", (dy, x, weight), (dx, *gradients), op, options)
        graph.made(maker, *weights)
        _copy_back(graph, weights, gradients, copies)
        if x.role != "input":
            graph.give(x, dx, op)

    graph.on_backward(op, backward)
    return out


def _copies(graph: Graph, weights: Sequence[Tensor], layer: str) -> list[tuple[int, Tensor]]:
    """Return copies of ``weights`` in the activations' precision and the operators that make them; [] if equal."""
    copies = []
    for weight in weights if graph.dtype != graph.weight_dtype else ():
        copy = graph.tensor(weight.shape, batch_dims=())
        copies.append((graph.forward("aten::_to_copy", (weight,), (copy,), layer), copy))
    return copies


def _raw_gradients(graph: Graph, weights: Sequence[Tensor]) -> list[Tensor]:
    """Return tensors to compute the gradients of ``weights`` in: their own, or ones of the activations' precision."""
    if graph.dtype == graph.weight_dtype:
        return [graph.weight_gradient(weight) for weight in weights]
    return [graph.tensor(weight.shape, batch_dims=()) for weight in weights]


def _copy_back(
    graph: Graph, weights: Sequence[Tensor], gradients: Sequence[Tensor], copies: Sequence[tuple[int, Tensor]]
) -> None:
    """Convert gradients from the activations' precision to the weights'; the copies are needed until then."""
    for (op, copy), weight, gradient in zip(copies, weights, gradients, strict=False):
        result = graph.weight_gradient(weight)
        graph.made(graph.backward(f"{AUTOGRAD}ToCopyBackward0", (gradient, copy), (result,), op), weight)


def _norm(graph: Graph, x: Tensor) -> Tensor:
    channels = x.shape[1]
    weight, bias = graph.weight(channels), graph.weight(channels)
    mean, variance = graph.buffer(channels), graph.buffer(channels)
    num_batches, increment = graph.buffer(dtype="int64"), graph.tensor((), dtype="int64", batch_dims=())
    graph.forward("aten::add_", (num_batches, increment), (num_batches,))
    out = graph.like(x)
    saved = [graph.tensor((channels,), dtype="float32", batch_dims=()) for _ in range(2)]
    op = graph.forward("aten::batch_norm", (x, weight, bias, mean, variance), (out,))

    def backward() -> None:
        dy, dx = graph.gradient(out), graph.like(x)
        gradients = [graph.weight_gradient(w) for w in (weight, bias)]
        inputs = (x, dy, weight, mean, variance, *saved)
        maker = graph.backward(f"{AUTOGRAD}CudnnBatchNormBackward0", inputs, (dx, *gradients), op)
        graph.made(maker, weight, bias)
        graph.give(x, dx, op)

    graph.on_backward(op, backward)
    return out


def _relu(graph: Graph, x: Tensor) -> Tensor:
    op = graph.forward("aten::relu_", (x,), (x,))
    return _simple(graph, x, x, op, "ReluBackward0", x)


def _simple(graph: Graph, x: Tensor, out: Tensor, op: int, name: str, *saved: Tensor) -> Tensor:
    """Add the backward operator of an operator without weights; it reads the gradient and the saved tensors."""
    return graph.gives_back(op, x, out, f"{AUTOGRAD}{name}", saved)


def _max_pool(graph: Graph, x: Tensor, kernel: int, stride: int, padding: int = 0) -> Tensor:
    size = (x.shape[2] + 2 * padding - kernel) // stride + 1
    out = graph.tensor((*x.shape[:2], size, size))
    op = graph.forward("aten::max_pool2d", (x,), (out,))
    places = graph.tensor(out.shape, dtype="int64")
    return _simple(graph, x, out, op, "MaxPool2DWithIndicesBackward0", x, places)


def _average(graph: Graph, x: Tensor, size: int) -> Tensor:
    """Apply adaptive average pooling to ``size`` x ``size``; pooling to one value is a mean, as in PyTorch."""
    out = graph.tensor((*x.shape[:2], size, size))
    op = graph.forward("aten::adaptive_avg_pool2d", (x,), (out,))
    if size == 1:
        return _simple(graph, x, out, op, "MeanBackward1")
    return _simple(graph, x, out, op, "AdaptiveAvgPool2DBackward0", x)


def _flat(graph: Graph, x: Tensor) -> Tensor:
    return graph.view(x, (x.shape[0], x.shape[1] * x.shape[2] * x.shape[3]))


def _linear(graph: Graph, x: Tensor, features: int) -> Tensor:
    weight, bias = graph.weight(features, x.shape[1]), graph.weight(features)
    out, attributes = graph.tensor((x.shape[0], features)), graph.product_attributes
    layer = graph.next_layer("aten::linear")
    copies = _copies(graph, (bias, weight), layer)
    op = graph.forward("aten::linear", (x, weight, bias), (out,), layer, attributes)

    def backward() -> None:
        dy, dx = graph.gradient(out), graph.like(x)
        gradients = _raw_gradients(graph, (bias, weight))
        maker = graph.backward(f"{AUTOGRAD}AddmmBackward0", (dy, x, weight), (dx, *gradients), op, attributes)
        graph.made(maker, weight, bias)
        _copy_back(graph, (bias, weight), gradients, copies)
        graph.give(x, dx, op)

    graph.on_backward(op, backward)
    return out


def _dropout(graph: Graph, x: Tensor) -> Tensor:
    out, mask = graph.like(x), graph.tensor(x.shape, dtype="uint8")
    op = graph.forward("aten::dropout", (x,), (out,))
    return _simple(graph, x, out, op, "NativeDropoutBackward0", mask)


def _add(graph: Graph, x: Tensor, addend: Tensor) -> Tensor:
    """Compute x += other: both get the gradient of the sum, without an operator."""
    op = graph.forward("aten::add_", (x, addend), (x,))

    def backward() -> None:
        dy = graph.gradient(x)
        graph.give(x, dy, op)
        graph.give(addend, dy, op)

    graph.on_backward(op, backward)
    return x


def _concatenate(graph: Graph, parts: list[Tensor]) -> Tensor:
    parts = list(parts)
    out = graph.tensor((parts[0].shape[0], sum(p.shape[1] for p in parts), *parts[0].shape[2:]))
    op = graph.forward("aten::cat", parts, (out,))

    def backward() -> None:
        gradients = [graph.like(part) for part in parts]
        graph.backward(f"{AUTOGRAD}CatBackward0", (graph.gradient(out),), gradients, op)
        for part, gradient in zip(parts, gradients, strict=True):
            graph.give(part, gradient, op)

    graph.on_backward(op, backward)
    return out


def _loss(graph: Graph, logits: Tensor, targets: Tensor) -> None:
    """Add cross entropy with two backward operators: of the likelihood, and of the logarithm of softmax."""
    logits = _in_full(graph, logits)
    loss = graph.tensor((), dtype="float32", batch_dims=())
    op = graph.forward("aten::cross_entropy_loss", (logits, targets), (loss,))
    gradient_of_loss, total = (graph.tensor((), dtype="float32", batch_dims=()) for _ in range(2))
    graph.forward("aten::ones_like", (loss,), (gradient_of_loss,))
    likelihoods = graph.like(logits)

    def backward() -> None:
        between, dlogits = graph.like(logits), graph.like(logits)
        graph.backward(f"{AUTOGRAD}NllLossBackward0", (gradient_of_loss, likelihoods, targets, total), (between,), op)
        graph.backward(f"{AUTOGRAD}LogSoftmaxBackward0", (between, likelihoods), (dlogits,), op)
        graph.give(logits, dlogits, op)

    graph.on_backward(op, backward)


def _in_full(graph: Graph, x: Tensor) -> Tensor:
    """Return x in float32, as autocast passes it to a loss."""
    if x.dtype == "float32":
        return x
    out = graph.tensor(x.shape, dtype="float32")
    op = graph.forward("aten::_to_copy", (x,), (out,))
    return _simple(graph, x, out, op, "ToCopyBackward0")


def _adam(graph: Graph) -> None:
    """Add torch.optim.Adam in its 'foreach' form: one operator per step of the formula, for all weights."""
    weights = list(graph.weights.values())
    gradients = [graph.gradients[w.id] for w in weights]

    def state() -> list[Tensor]:
        return [graph.tensor(w.shape, role="optimizer_state", dtype=w.dtype, batch_dims=()) for w in weights]

    first, second, root = state(), state(), state()
    graph.optimizer("aten::_foreach_lerp_", (*first, *gradients))
    graph.optimizer("aten::_foreach_mul_", second)
    graph.optimizer("aten::_foreach_addcmul_", (*second, *gradients, *gradients))
    graph.optimizer("aten::_foreach_sqrt", second, root)
    graph.optimizer("aten::_foreach_div_", root)
    graph.optimizer("aten::_foreach_add_", root)
    graph.optimizer("aten::_foreach_addcdiv_", (*weights, *first, *root))
