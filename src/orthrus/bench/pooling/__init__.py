"""Benchmarks of embeddings alone, each on engines in processes of their own, one after the other."""
