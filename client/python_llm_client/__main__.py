"""`python -m python_llm_client` is the `python-llm` command."""

from python_llm_client.cli import main

if __name__ == "__main__":
    main()
