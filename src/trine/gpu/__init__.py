"""The load-store level: what GPUs do inside, load by load and store by store (docs/design/gpu-model.md).

Begin with ``program`` (what GPUs run), ``model`` (what they are), ``run`` (how both become ``records``) and
``reference`` (what happens, in plain Python). ``layout`` and ``fabric`` are the paths inside and between GPUs,
``system`` is what an engine gets, ``compiled`` the fast engine. ``folding`` simulates one GPU for many, ``replayed``
one GPU whose peers are replayed. ``text``, ``builder`` and ``join`` make programs.
"""
