"""Ollama's API: bodies, their translation to requests of the text face, and the way back."""
