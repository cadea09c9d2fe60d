"""OpenVINO GenAI behind HTTP, as a peer in benchmarks. Imports neither vLLM nor torch, so that it can live in
an environment of its own."""
