"""The paper's tables and figures as specs, with its published values beside ours."""
