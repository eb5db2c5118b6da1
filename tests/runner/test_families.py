"""Every family through the door that serves it, against transformers: by folder and by GGUF file, in every format.

What was exact and what was close is printed as a table at the end of the run.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from families import FAMILIES, in_docs, spec, table, wide_config
from family_report import REPORT
from python_llm.errors import ModelLoadError
from python_llm.model_files.locate import ModelFiles
from python_llm.runner.factory import load_runner
from python_llm.runner.gguf_config import SUPPORTED
from python_llm.runner.hf_families import FAMILIES as MODEL_TYPES
from python_llm.runner.kernels.native_runner import NativeRunner
from python_llm.runner.native_support import lacking
from python_llm.runner.runner import StepRunner
from runner_steps import greedy, pages, span
from test_gguf_names import CHANGES, SERVED
from tiny_configs import TINY_CONFIGS
from tiny_gguf import ARCHITECTURES, write_gguf
from tiny_models import tiny_hf_model

KINDS = [kind for family in FAMILIES for kind in family.kinds]
GGUF_KINDS = [kind for kind in KINDS if TINY_CONFIGS[kind]["model_type"] in ARCHITECTURES]
LENGTH, PROMPT, NEW = 30, 18, 16
EXACT = 1e-3
"""Most that a float32 logit may differ, as a share of the largest."""
LOSS = {"bfloat16": 3e-3, "int8": 2e-2, "int4": 0.35, "Q8_0": 3e-2, "MXFP4": 0.35}
"""Most that 1 - cosine similarity with transformers' float32 logits may be on average. Random weights lose far more
than trained ones, and a rounded router may choose another expert; a row out of its place would make it about 1."""


class Case:
    """One kind of tiny model as transformers has it, as a folder and as GGUF files."""

    def __init__(self, kind: str, path: Path, changes: dict[str, object]) -> None:
        self.kind, self.path = kind, path
        config = {**wide_config(kind), **changes}
        self.model = tiny_hf_model(kind, **config)
        self.model.generation_config.eos_token_id = None
        self.model.save_pretrained(path)
        ids = torch.randint(3, 160, (1, LENGTH), generator=torch.Generator().manual_seed(1))
        self.ids = ids[0].tolist()
        with torch.inference_mode():
            self.logits = self.model(ids).logits[0]
            generated = self.model.generate(ids[:, :PROMPT], max_new_tokens=NEW, do_sample=False)
        self.continuation = generated[0, PROMPT:].tolist()

    def runner(self, path: Path, **settings: object) -> StepRunner:
        files = ModelFiles(str(path), "hf" if path.is_dir() else "gguf", path)
        return load_runner(
            files,
            block_size=8,
            kv_cache_bytes=2 << 20,
            cpu_threads=1,  # tiny steps
            max_model_len=SERVED.get(self.kind),
            warn=lambda _: None,
            **settings,  # type: ignore[arg-type]
        )

    def logits_in_company(self, runner: StepRunner) -> torch.Tensor:
        """The prompt in chunks of 7, each step shared with another sequence of another length."""
        own, other = pages(runner, 2, seed=4)
        found = []
        for start in range(0, LENGTH, 7):
            end = min(start + 7, LENGTH)
            mate = span(runner, self.ids[::-1], 0, 1 + start, other)
            with torch.inference_mode():
                runner.forward([mate, span(runner, self.ids, start, end, own)])
                found.append(runner.logits(range(1 + start, 1 + end)))
        return torch.cat(found)


@pytest.fixture(scope="module", params=KINDS)
def case(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Case:
    return Case(request.param, tmp_path_factory.mktemp(request.param), {})


@pytest.fixture(scope="module", params=GGUF_KINDS)
def gguf_case(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Case]:
    yield Case(request.param, tmp_path_factory.mktemp(request.param), CHANGES.get(request.param, {}))


def check_exact(case: Case, runner: StepRunner, column: str) -> None:
    found = case.logits_in_company(runner)
    worst = float((found - case.logits).abs().max() / case.logits.abs().max())
    assert worst < EXACT
    assert greedy(runner, case.ids[:PROMPT], NEW, pages(runner, 1)[0], 5) == case.continuation
    REPORT.add(case.kind, column, "exact")


def check_close(case: Case, runner: StepRunner, column: str) -> None:
    found = case.logits_in_company(runner)
    loss = 1 - float(torch.cosine_similarity(found.double(), case.logits.double(), dim=-1).mean())
    assert 1e-9 < loss < LOSS[column], "the format has an effect, and a bounded one"
    REPORT.add(case.kind, column, f"{loss:.1e}")


def test_float32(case: Case) -> None:
    runner = case.runner(case.path, weight_format="float32")
    assert isinstance(runner, NativeRunner) == (not lacking(spec(case.kind)))
    check_exact(case, runner, "float32")


@pytest.mark.parametrize("weight_format", ["bfloat16", "int8", "int4"])
def test_smaller_formats(case: Case, weight_format: str) -> None:
    if lacks := lacking(spec(case.kind)):
        with pytest.raises(ModelLoadError, match=f"The format {weight_format} needs the native kernels") as error:
            case.runner(case.path, weight_format=weight_format)
        assert lacks[0] in str(error.value)
        REPORT.add(case.kind, weight_format, "refused")
        return
    check_close(case, case.runner(case.path, weight_format=weight_format), weight_format)


def test_gguf_float32(gguf_case: Case) -> None:
    path = write_gguf(gguf_case.path, gguf_case.path / "F32.gguf")
    check_exact(gguf_case, gguf_case.runner(path, weight_format="float32"), "GGUF")


def test_gguf_q8_0(gguf_case: Case) -> None:
    path = write_gguf(gguf_case.path, gguf_case.path / "Q8_0.gguf", "Q8_0")
    check_close(gguf_case, gguf_case.runner(path), "Q8_0")


def test_gpt_oss_in_the_blocks_it_was_published_in(tmp_path: Path) -> None:
    case = Case("gpt_oss", tmp_path, {})
    check_close(case, case.runner(write_gguf(tmp_path, tmp_path / "MXFP4.gguf", "MXFP4")), "MXFP4")


def test_explicit_native_kernels_say_what_they_lack(case: Case) -> None:
    lacks = lacking(spec(case.kind))
    if not lacks:
        assert isinstance(case.runner(case.path, kernels="native"), NativeRunner)
        return
    with pytest.raises(ModelLoadError, match="The native kernels cannot be used: they do not have") as error:
        case.runner(case.path, kernels="native")
    assert all(feature in str(error.value) for feature in lacks)


def test_every_served_model_type_and_architecture_has_a_family() -> None:
    shown = {name for family in FAMILIES for name in family.model_types}
    assert shown == set(MODEL_TYPES)
    assert {name for family in FAMILIES for name in family.architectures} == set(SUPPORTED)
    assert sorted(KINDS) == sorted(TINY_CONFIGS)


def test_the_docs_show_this_table() -> None:
    assert in_docs() == table(), "run: python tests/support/families.py"
