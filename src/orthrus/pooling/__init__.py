"""Hidden states of chunks become one vector: torch only, one accumulator per head."""
