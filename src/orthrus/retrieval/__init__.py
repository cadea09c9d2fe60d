"""Vector store and passages for retrieval-augmented generation."""
