"""The load-store level: GPUs simulated load by load and store by store (docs/design/gpu-model.md).

Begin with ``program`` (GPU programs), ``model`` (GPU models), ``run`` (simulates both and returns ``records``) and
``reference`` (the semantics, in plain Python). ``layout`` and ``fabric`` are the paths inside and between GPUs,
``system`` is the input of an engine, ``compiled`` the fast engine. ``folding`` simulates one GPU for many, ``replayed``
one GPU whose peers are replayed. ``text``, ``builder`` and ``join`` make programs.
"""
