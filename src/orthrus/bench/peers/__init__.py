"""Other engines beside vLLM: starting one by its own command, and adapters to the API the client uses."""
