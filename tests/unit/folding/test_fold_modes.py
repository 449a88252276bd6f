"""Does each mode of folding state what it folds, and is an unknown one refused?"""

import pytest

import trine
from trine.errors import InputError
from trine.folding.modes import FoldMode, fold_of

#: Mode -> whether it folds micro-batches and steps, may estimate, and verifies.
PROPERTIES = {
    "on": (True, True, True, False),
    "exact": (True, False, False, False),
    "ranks": (False, False, True, False),
    "off": (False, False, False, False),
    "verify": (True, True, False, True),
}


@pytest.mark.parametrize("mode", FoldMode)
def test_properties_of_each_mode(mode):
    found = (mode.folds_micro_batches, mode.folds_steps, mode.may_estimate, mode.verifies)
    assert found == PROPERTIES[mode.value]


def test_modes_are_the_texts_of_the_option():
    assert [fold_of(name) for name in PROPERTIES] == list(FoldMode)
    assert all(mode == mode.value for mode in FoldMode)


@pytest.mark.parametrize("name", ["verfy", "ON", ""])
def test_an_unknown_mode_is_refused(name):
    with pytest.raises(InputError, match=f"unknown folding '{name}'"):
        fold_of(name)
    with pytest.raises(InputError, match="unknown folding"):
        trine.simulate("vgg13-h100-b128", trine.Plan(dp=2), cluster="dgx-h100", fold=name)


@pytest.mark.parametrize("name", ["on", "exact", "ranks", "off"])
def test_texts_and_modes_ask_the_same(name):
    plan = trine.Plan(dp=2, batch=512, micro_batch=32)
    times = set()
    for fold in (name, fold_of(name)):
        result = trine.simulate("vgg13-h100-b128", plan, cluster="dgx-h100", fold=fold, compare=False)
        times.add(result.step_time_ps)
    assert len(times) == 1
