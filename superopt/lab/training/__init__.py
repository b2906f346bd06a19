"""Labels for the learned models: program families, what a search visits on them, and how its kernels are timed.

    families   small programs in JAX, seeded
    visit      import, grow, search, walk: tasks (one function) and their forms
    collect    tasks timed in a worker process, resumable
    schedules  the prior that guides a search of schedules

No family is a program of a benchmark suite.
"""
