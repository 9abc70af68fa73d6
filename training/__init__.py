"""How the work of a job is computed: its math, its data, and the processes that run it."""
