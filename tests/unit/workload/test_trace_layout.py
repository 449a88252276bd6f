"""Does the batch dimension keep its place through reshapes, GEMMs and broadcasts?"""

from __future__ import annotations

from trine.workload.analysis.shape_rules import (
    RULES,
    OperatorCall,
    batch_dims,
    broadcast,
    default,
    head,
    plain,
    reshape,
    seeded,
    shape_of,
    view,
)


def dims_after(shape: tuple[int, ...], dim: int, batch: int, *shapes: tuple[int, ...]) -> tuple[int, ...]:
    layout = seeded(shape, dim, batch)
    for target in shapes:
        found = reshape(layout, target)
        assert found is not None
        assert shape_of(found) == target
        layout = found
    return batch_dims(layout)


def test_flattening_tokens_and_back_keeps_the_batch() -> None:
    assert dims_after((4, 32, 64), 0, 4, (128, 64)) == (0,)
    assert dims_after((4, 32, 64), 0, 4, (128, 64), (4, 32, 64)) == (0,)
    assert dims_after((4, 32, 64), 0, 4, (4, 32, 4, 16)) == (0,)  # four heads at batch four


def test_flattening_images_where_channels_equal_the_batch() -> None:
    assert dims_after((512, 512, 7, 7), 0, 512, (512, 25088)) == (0,)
    assert dims_after((512, 512, 7, 7), 0, 512, (512, 25088), (512, 512, 7, 7)) == (0,)


def test_sequence_first_order() -> None:
    assert dims_after((32, 4, 64), 1, 4, (128, 64)) == (0,)
    assert dims_after((32, 4, 64), 1, 4, (128, 64), (32, 4, 64)) == (1,)
    assert dims_after((32, 4, 64), 1, 4, (32, 16, 16)) == (1,)  # (S, B*heads, d)


def test_batch_times_heads_stays_a_multiple_of_the_batch() -> None:
    layout = seeded((4, 8, 32, 16), 0, 4)
    merged = reshape(layout, (32, 32, 16))
    assert merged is not None
    assert batch_dims(merged) == (0,)
    assert batch_dims(reshape(merged, (4, 8, 32, 16)) or ()) == (0,)


def test_unsqueeze_and_squeeze() -> None:
    assert dims_after((4, 32), 0, 4, (1, 4, 1, 32)) == (1,)
    assert dims_after((4, 32), 0, 4, (1, 4, 1, 32), (4, 32)) == (0,)


def test_what_is_no_reshape_is_none() -> None:
    assert reshape(plain((4, 3)), (4, 4)) is None
    assert reshape(plain((4, 0)), (2, 0)) is None


def test_dimensions_that_cut_across_each_other_are_no_reshape_to_follow() -> None:
    assert reshape(seeded((6, 10), 0, 6), (4, 15)) is None
    assert reshape(seeded((6, 10), 0, 6), (15, 4)) is None


def test_broadcast_takes_the_batch_from_the_operand_that_has_it() -> None:
    data = seeded((4, 32, 64), 0, 4)
    assert batch_dims(broadcast([plain((64,)), data], (4, 32, 64))) == (0,)
    assert batch_dims(broadcast([plain((32, 64)), plain((64,))], (4, 32, 64))) == ()


def test_head_keeps_only_dimensions_of_equal_size() -> None:
    assert batch_dims(head(seeded((4, 3, 8, 8), 0, 4), 2, (4, 16, 4, 4))) == (0,)


def run(kind: str, inputs: list, outputs: list, **values: object) -> list[tuple[int, ...] | None]:
    site = OperatorCall(tuple(inputs), tuple(outputs), values)
    return [None if layout is None else batch_dims(layout) for layout in RULES.get(kind, default)(site)]


def test_products_contract_the_batch() -> None:
    gradient, data = seeded((512, 4096), 0, 512), seeded((512, 25088), 0, 512)
    transposed = (gradient[1], gradient[0])
    assert run("mm", [gradient, plain((4096, 25088))], [(512, 25088)]) == [(0,)]
    assert run("mm", [transposed, data], [(4096, 25088)]) == [()]
    attention = seeded((16, 32, 8), 0, 4)  # (B*heads, S, d)
    assert run("bmm", [attention, plain((16, 8, 32))], [(16, 32, 32)]) == [(0,)]


def test_weight_gradient_of_the_shape_of_an_activation_does_not_scale() -> None:
    data = seeded((512, 512, 3, 3), 0, 512)
    weight = plain((512, 512, 3, 3))
    outputs = [(512, 512, 3, 3), (512, 512, 3, 3), (512,)]
    assert run("convolution_backward", [data, data, weight], outputs) == [(0,), (), ()]


def test_statistics_of_as_many_channels_as_samples_do_not_scale() -> None:
    data = seeded((128, 128, 28, 28), 0, 128)
    channel = plain((128,))
    assert run("batch_norm", [data, channel, channel], [(128, 128, 28, 28), (128,), (128,)]) == [(0,), (), ()]
    assert run("sum", [data], [(128,)], dim=[0, 2, 3]) == [()]
    assert run("sum", [data], [(128,)], dim=[1, 2, 3]) == [(0,)]
    assert run("unknown", [data], [(128,)]) == [()]


def test_shuffles_with_and_without_named_dimensions() -> None:
    data = seeded((4, 4, 32, 16), 0, 4)
    assert run("transpose", [data], [(4, 4, 32, 16)], dim0=0, dim1=1) == [(1,)]
    assert run("permute", [data], [(32, 4, 4, 16)], dims=[2, 0, 1, 3]) == [(1,)]
    assert run("select", [seeded((3, 4, 8), 1, 4)], [(4, 8)], dim=0) == [(0,)]
    assert run("stack", [seeded((4, 8), 0, 4)] * 2, [(2, 4, 8)], dim=0) == [(1,)]
    assert run("cat", [seeded((4, 8), 0, 4), plain((4, 2))], [(4, 10)], dim=1) == [(0,)]
    assert run("cat", [seeded((4, 8), 0, 4)] * 2, [(8, 8)], dim=0) == [(0,)]
    assert run("embedding", [plain((100, 64)), seeded((4, 32), 0, 4)], [(4, 32, 64)]) == [(0,)]
    assert run("linear", [seeded((4, 32, 64), 0, 4), plain((256, 64))], [(4, 32, 256)]) == [(0,)]


def test_a_view_of_nothing_or_without_a_shape_has_no_layout() -> None:
    layout = seeded((4, 32), 0, 4)
    assert view(OperatorCall((None,), ((8, 16),), {})) == [None]
    assert view(OperatorCall((layout,), (None, (4, 2, 16)), {})) == [None, reshape(layout, (4, 2, 16))]
