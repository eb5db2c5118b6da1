"""Writes the reference pages of the docs from the tables that the code itself reads: `python -m python_llm.reference`.

Does not know what a setting or parameter does beyond its own line in its table.
"""

from __future__ import annotations

import dataclasses
import json
import sys
from pathlib import Path

from python_llm.config import ModelSettings
from python_llm.engine.sampling_params import SAMPLING_PARAMETERS

_GENERATED = "Written by `python -m python_llm.reference docs` from `{source}`; do not edit by hand."


def settings_page() -> str:
    """Markdown: every setting of `model.json`."""
    rows = []
    for spec in dataclasses.fields(ModelSettings):
        low, high, unit = spec.metadata["low"], spec.metadata["high"], spec.metadata["unit"]
        allowed = "" if low is None else f">= {low}" if high is None else f"{low} to {high}"
        allowed = allowed or ", ".join(f"`{choice}`" for choice in spec.metadata["choices"])
        default = "" if spec.name == "model" else f"`{json.dumps(spec.default)}`"
        kind = spec.metadata["kind"].__name__ + (f", {unit}" if unit else "")
        rows.append([f"`{spec.name}`", kind, default, allowed, spec.metadata["doc"]])
    text = (
        "They stand in `model_repository/MODEL/1/model.json`; `python-llm serve --set MODEL.SETTING=VALUE` overrides "
        "them.\nAn unknown name is an error at load."
    )
    return _page("Settings of a model", "config.py", text, ["setting", "type", "default", "allowed", "meaning"], rows)


def sampling_page() -> str:
    """Markdown: every sampling parameter of a request."""
    rows = []
    for parameter in SAMPLING_PARAMETERS:
        default = parameter.default if parameter.default != () else []
        rows.append([f"`{parameter.name}`", f"`{json.dumps(default)}`", parameter.allowed, parameter.doc])
    text = (
        "They come as JSON in the input `sampling_parameters`, or as request parameters (top level of a `/generate` "
        'body);\nwhere both name one, the input wins. Strings such as `"0.7"` are converted. An unknown or '
        "out-of-range parameter is\nan INVALID_ARG that names it."
    )
    columns = ["parameter", "default", "allowed", "meaning"]
    return _page("Sampling parameters of a request", "engine/sampling_params.py", text, columns, rows)


PAGES = {"settings.md": settings_page, "sampling-parameters.md": sampling_page}


def _page(title: str, source: str, text: str, columns: list[str], rows: list[list[str]]) -> str:
    table = [columns, ["---"] * len(columns), *rows]
    lines = [f"# {title}", "", _GENERATED.format(source=f"backends/python_llm/{source}"), "", text, ""]
    lines += ["| " + " | ".join(cell.replace("|", "\\|") for cell in row) + " |" for row in table]
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    for name, page in PAGES.items():
        (Path(sys.argv[1]) / name).write_text(page(), encoding="utf-8")
