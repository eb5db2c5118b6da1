"""What a test run found for each family and format, for the table at its end."""

from __future__ import annotations

COLUMNS = ("float32", "bfloat16", "int8", "int4", "GGUF", "Q8_0", "MXFP4")


class FamilyReport:
    def __init__(self) -> None:
        self._cells: dict[str, dict[str, str]] = {}

    def add(self, kind: str, column: str, finding: str) -> None:
        """`finding`: "exact", "refused", or the loss, 1 - mean cosine similarity of the logits."""
        self._cells.setdefault(kind, {})[column] = finding

    def lines(self) -> list[str]:
        if not self._cells:
            return []
        rows = [["", *COLUMNS], *([kind, *(cells.get(c, "-") for c in COLUMNS)] for kind, cells in self._cells.items())]
        return ["".join(f"{cell:<20}" if i == 0 else f"{cell:<10}" for i, cell in enumerate(row)) for row in rows]


REPORT = FamilyReport()
