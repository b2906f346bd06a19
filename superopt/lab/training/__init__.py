"""Training of the learned models: program families, what a search visits on them, how it is timed, fits and figures.

    families   small programs in JAX, seeded
    visit      import, grow, search, walk: tasks (one function) and their forms
    collect    tasks timed in a worker process, resumable
    corpus     what was timed, with splits of it
    fit        the roofline, then the network; `evaluate` on held-out programs, `speed` of scoring
    calibrate  the roofline of a machine from its micro-suite
    schedules  the prior that guides a search of schedules

No family is a program of a benchmark suite.
"""
