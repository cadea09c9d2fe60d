"""The vLLM side: scheduler, worker, model runner, and the only module that imports vLLM's private parts."""
