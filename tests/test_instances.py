"""How many instances a model may have: one process each, that knows nothing of the others."""

from __future__ import annotations

import json

import pytest

from python_llm.errors import SettingsError
from python_llm.model import _refuse_several_instances


def arguments(*counts: int) -> dict[str, str]:
    groups = [{"kind": "KIND_CPU", "count": count} for count in counts]
    return {"model_config": json.dumps({"instance_group": groups})}


@pytest.mark.parametrize("kind", ["llm", "tokenizer", "detokenizer"])
def test_one_and_no_more(kind: str) -> None:
    _refuse_several_instances(kind, arguments())
    _refuse_several_instances(kind, arguments(1))
    for counts in ((2,), (1, 1)):
        with pytest.raises(SettingsError, match=f"a model of kind {kind} must have 1 instance, .* asks for 2: "):
            _refuse_several_instances(kind, arguments(*counts))
