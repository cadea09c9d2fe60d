"""Mixed-workload benchmarks: workloads, clients, topologies, reports and plots."""
