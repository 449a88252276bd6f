"""Does a fit of up to three factors recover the true ones, and refuse factors that the steps cannot determine?"""

from __future__ import annotations

import math

import pytest

from trine.errors import InputError
from trine.training.factor_fit import fit_factors, mean_error

#: Seconds of GPU work, CPU work and communication of made-up steps.
STEPS = [(1.0, 0.2, 0.1), (0.2, 0.9, 0.1), (0.4, 0.1, 0.8), (0.1, 0.6, 0.3), (2.0, 0.4, 0.9), (0.2, 1.2, 0.4)]


def seconds(factors, step):
    gpu, cpu, communication = STEPS[step]
    busy = max(gpu * factors.get("gpu", 1), cpu * factors.get("cpu", 1))
    return busy + communication * factors.get("communication", 1)


def test_factors_that_were_put_in_are_found():
    true = {"gpu": 1.3, "cpu": 0.8, "communication": 1.6}
    measured = [seconds(true, step) for step in range(len(STEPS))]
    fit = fit_factors(seconds, measured, list(true))
    assert all(math.isclose(fit.factors[name], value, rel_tol=1e-3) for name, value in true.items())
    assert mean_error(fit.after) < 1e-3 < mean_error(fit.before)
    assert fit.left_out_error is not None
    assert fit.left_out_error < 0.01


def test_one_step_fits_one_factor_and_tests_nothing():
    fit = fit_factors(seconds, [1.5], ["gpu"])
    assert math.isclose(fit.factors["gpu"], 1.4, rel_tol=1e-4)
    assert fit.left_out == ()
    assert fit.left_out_error is None


def test_steps_of_one_group_are_left_out_together():
    measured = [seconds({"gpu": 2.0}, step) for step in range(len(STEPS))]
    fit = fit_factors(seconds, measured, ["gpu"], groups=["a", "b", "b", "a", "c", "c"])
    assert len(fit.left_out) == len(STEPS)
    # each group has a step bound by the GPU, so the other two groups always show the factor
    assert fit.left_out_error == pytest.approx(0, abs=0.01)


@pytest.mark.parametrize(
    ("names", "count", "says"),
    [
        (["gpu", "gpu"], 2, "between 1 and 3 different factors"),
        ([], 2, "got none"),
        (["gpu", "cpu", "communication"], 2, "3 factors need 3 measured steps"),
        (["nothing"], 2, "no measured step depends on the factor 'nothing'"),
        (["gpu", "same"], 2, "cannot tell gpu and same apart"),
    ],
)
def test_what_cannot_be_fitted_is_refused(names, count, says):
    def predict(factors, step):
        return seconds({"gpu": factors.get("gpu", 1) * factors.get("same", 1)}, step)

    with pytest.raises(InputError, match=says):
        fit_factors(predict if "same" in names else seconds, [1.0] * count, names)
