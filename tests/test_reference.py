"""The reference pages say what the code does."""

from __future__ import annotations

from pathlib import Path

import pytest

from python_llm.reference import PAGES


@pytest.mark.parametrize("name", PAGES)
def test_page_is_up_to_date(name: str) -> None:
    page = Path(__file__).parent.parent / "docs" / name
    assert page.read_text(encoding="utf-8") == PAGES[name](), "run: python -m python_llm.reference docs"
