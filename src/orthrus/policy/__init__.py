"""Which work runs next: pure Python, no torch, no vLLM; the engine and the simulator run these classes."""
