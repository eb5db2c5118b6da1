"""What talks to the server from outside: the `python-llm` command and a small streaming client."""
