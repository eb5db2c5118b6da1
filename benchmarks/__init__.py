"""Measurements of python_llm: beside other engines, against the machine's limits, as it grows, through a server.

Not installed with the product. `python -m benchmarks --help`; docs/performance.md says how to read the results.
"""
