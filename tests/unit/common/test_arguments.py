"""Do arguments that there are not get a sentence with the nearest word, in functions and in dataclasses?"""

from __future__ import annotations

import dataclasses
import inspect

import pytest

import trine
from trine.common.arguments import ArgumentError, options_of
from trine.gpu.collective import LoadStoreOptions
from trine.training.options import SimulateOptions

KINDS = (
    trine.Plan,
    trine.CollectiveOptions,
    trine.EidolonOptions,
    trine.HopProtocol,
    LoadStoreOptions,
    SimulateOptions,
)


@pytest.mark.parametrize(
    ("call", "says"),
    [
        (lambda: trine.Plan(micro_batchs=2), "Plan has no argument 'micro_batchs'; did you mean 'micro_batch'?"),
        (lambda: trine.Plan(num_steps=2), "Plan has no argument 'num_steps'; it is called 'steps' now"),
        (
            lambda: trine.EidolonOptions(waits="single"),
            "EidolonOptions has no argument 'waits'; it is called 'flags' now",
        ),
        (lambda: trine.load_cluster("dgx-h100", node=2), "load_cluster has no argument 'node'; did you mean 'nodes'?"),
        (
            lambda: trine.simulate("vgg13-h100-b128", clutser=2),
            "simulate has no argument 'clutser'; did you mean 'clus",
        ),
        (
            lambda: trine.simulate("vgg13-h100-b128", dp=2),
            "simulate has no argument 'dp'; it is a field of Plan: plan=Plan(dp=...)",
        ),
        (
            lambda: trine.simulate("vgg13-h100-b128", nodes=2),
            "simulate has no argument 'nodes'; the cluster has it: cluster=load_cluster(",
        ),
        (lambda: trine.simulate(), "simulate: missing a required argument: 'workload'"),
        (lambda: trine.Plan(2), "Plan: too many positional arguments"),
    ],
)
def test_a_wrong_argument_gets_a_sentence(call, says):
    with pytest.raises(ArgumentError) as caught:
        call()
    assert says in str(caught.value)
    assert isinstance(caught.value, TypeError)
    assert isinstance(caught.value, trine.InputError)


def test_every_public_function_refuses_an_argument_that_it_does_not_have():
    for name in trine.__all__:
        value = getattr(trine, name)
        if inspect.isfunction(value):
            with pytest.raises(ArgumentError, match=f"{name} has no argument 'no_such_argument'"):
                value(no_such_argument=1)


def test_errors_of_a_type_inside_of_a_function_stay_what_they_are():
    with pytest.raises(TypeError) as caught:
        trine.Plan(dp=2, expert_shares=3)
    assert not isinstance(caught.value, ArgumentError)


def test_a_function_that_takes_options_shows_their_names_and_takes_them_whole_too():
    fields = [field.name for field in dataclasses.fields(SimulateOptions)]
    parameters = inspect.signature(trine.simulate).parameters
    assert list(parameters) == ["workload", "plan", *fields]
    assert parameters["compute"].default == "auto"
    whole = SimulateOptions(gpu="no-such-gpu")
    with pytest.raises(trine.InputError, match="no-such-gpu"):
        trine.simulate("vgg13-h100-b128", options=whole)
    with pytest.raises(trine.InputError, match="neither"):
        trine.simulate("vgg13-h100-b128", options=whole, gpu="neither")


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
def test_help_texts_are_sentences(kind):
    assert options_of(kind)
    for name, field in options_of(kind).items():
        text = field.metadata["help"]
        assert text[:1].isupper() or text.startswith(("fsdp", "auto", "none")), name
        assert text.rstrip("]").rstrip().endswith((".", '"', "...")) or text.endswith("]."), (name, text)
