"""An HTTP gateway that speaks OpenAI's and Ollama's API in front of one or several Triton servers.

Loads no tokenizer and no model: it translates requests, and the backend does the rest.
"""
