"""Planning of RL training on many GPUs: pipeline graphs, hardware, cost model, search.

A `Pipeline` says which models a step invokes and what they pass on, a `Workload` how much, a `Cluster` on
what. A `Plan` gives each invocation a block of GPUs, degrees of parallelism and microbatches. Both are
unrolled over several steps, lowered to operators, transfers and reshards, costed, and scheduled:

    Pipeline ─ unroll ─▶ UnrolledGraph ─ lower (Plan) ─▶ ExecutableGraph ─ costs ─▶ Timeline ─▶ score

Modules, each one noun: `pipeline`, `algorithms`, `pipeline_file`; `shapes`; `workload`; `cluster`,
`hardware_file`; `plan`, `plan_file`; `unroll`, `lower`, `fusion`; `cost_time`, `cost_memory`, `explain`;
`timeline`; `evaluate` (all of it for one plan); `candidates`, `baselines`, `space`, `moves`, `annealing`,
`search`; `compiled` and `kernel` (the same evaluation, compiled); `gains`, `report`, `layout` (for people).
"""
