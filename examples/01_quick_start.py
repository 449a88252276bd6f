"""One bundled single-GPU trace, eight GPUs: how long is a step, and why?"""

import trine

workload = trine.load("vgg13-h100-b128")
result = trine.simulate(workload, trine.Plan(dp=8), cluster="dgx-h100")
print(result.summary())
