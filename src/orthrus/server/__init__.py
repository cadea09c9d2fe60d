"""The HTTP server of orthrus serve: vLLM's own application plus our routes, errors and metrics."""
