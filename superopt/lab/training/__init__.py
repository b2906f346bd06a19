"""Training of the learned models: program families, labels from timed kernels, fits, and figures of accuracy.

    families   Small programs in JAX, seeded.
    visit      Import, grow, search, walk: tasks (one function) and their forms.
    collect    Tasks timed in a worker process, resumable.
    corpus     The timed labels, and splits of them.
    fit        The roofline, then the network; `evaluate` on held-out programs, `speed` of scoring.
    calibrate  The roofline of a machine from its micro-suite.
    schedules  The prior that guides a search of schedules.

No family is a program of a benchmark suite.
"""
