"""The search for models without lower bounds: which layouts does it simulate before it ends?"""

import trine
from trine.search import search as searched

FIXED = {"sharding": "none", "schedule": "1f1b", "micro_batch": 4}


def test_layouts_with_few_gpus_in_a_replica_are_simulated_first(monkeypatch):
    """An impatient search of an encoder finds data parallelism, which is twice as fast as pipelines."""
    monkeypatch.setattr(searched, "PATIENCE", 4)
    model = "model:bert-base,layers=2,sequence=128"
    found = trine.plan(model, gpus=4, cluster="dgx-h100", global_batch=32, fix=FIXED, workers=1, top=1)
    assert (found.best.layout.dp, found.best.layout.recompute) == (4, "none")
    reason = next(reason for reason in found.rejected if reason.startswith("not examined"))
    assert "--exact" in reason
    exact = trine.plan(model, gpus=4, cluster="dgx-h100", global_batch=32, fix=FIXED, workers=1, top=1, exact=True)
    assert exact.num_simulated > found.num_simulated
    assert exact.best.layout == found.best.layout
