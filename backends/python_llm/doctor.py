"""What this machine can do and how a model will run on it: `python -m python_llm.doctor [model.json]`.

Measures, so it takes some seconds. Does not start a server; does not know requests.
"""

from __future__ import annotations

import os
import platform
import sys
import time
from collections.abc import Iterator
from pathlib import Path

from python_llm.config import ModelSettings, load_settings
from python_llm.errors import PythonLLMError
from python_llm.runner.kernels.library import REQUIRED_CPU_FLAGS, KernelsUnavailableError, cpu_flags, load_kernels

_TELLING_FLAGS = ("avx2", "fma", "f16c", "avx512f", "avx512_vnni", "avx_vnni", "amx_int8")

Lines = Iterator[tuple[str, str]]


def machine() -> Lines:
    """(what, finding) about the machine."""
    flags, threads = cpu_flags(), len(os.sched_getaffinity(0))
    yield "CPU", f"{_cpu_name()}, {threads} of {os.cpu_count()} cores for this process"
    yield "CPU features", ", ".join(flag for flag in _TELLING_FLAGS if flag in flags) or "none of those we use"
    memory, free = _memory()
    yield "memory", f"{memory:.1f} GiB, {free:.1f} GiB available"
    try:
        library = load_kernels()
    except KernelsUnavailableError as error:
        yield "kernels", f"not used: {error}"
        yield (
            "advice",
            "models run on plain torch, several times slower; "
            + (
                "run make setup again once a C++ compiler is installed"
                if flags >= REQUIRED_CPU_FLAGS
                else f"a CPU with {', '.join(sorted(REQUIRED_CPU_FLAGS))} is needed"
            ),
        )
        return
    yield "kernels", "native, AVX2"
    yield "memory bandwidth", f"{library.pl_read_bandwidth(threads) / 1e9:.1f} GB/s ({threads} threads reading)"
    yield "8-bit peak", f"{library.pl_int8_peak(threads) / 1e9:.0f} GOP/s"
    yield "float32 peak", f"{library.pl_float32_peak(threads) / 1e9:.0f} GFLOP/s"


def model(path: Path) -> Lines:
    """(what, finding) about the model that `path`, a model.json, names. Loads it. Raises PythonLLMError."""
    settings = load_settings(path, path.parent.parent.name)
    yield from _language_model(settings, path) if settings.kind == "llm" else _text_model(settings, path)


def _text_model(settings: ModelSettings, path: Path) -> Lines:
    """Of a tokenizer or detokenizer: it needs no weights, so none are loaded."""
    from python_llm.loading import locate_model, tokenizer_of

    files = locate_model(settings, path.parent)
    started = time.monotonic()
    tokenizer = tokenizer_of(settings, path.parent, files)
    yield "model", f"{files.path} (a {settings.kind}, without weights)"
    yield "loaded in", f"{time.monotonic() - started:.1f} s"
    yield "vocabulary", f"{tokenizer.vocab_size} tokens"
    yield "chat template", "none" if tokenizer.chat_template is None else "the model's own"


def _language_model(settings: ModelSettings, path: Path) -> Lines:
    from python_llm.loading import locate_model, runner_of
    from python_llm.runner.kernels.native_runner import NativeRunner
    from python_llm.runner.loader import read_config
    from python_llm.runner.modules_runner import ModulesRunner

    files = locate_model(settings, path.parent)
    yield "model", f"{files.path} ({read_config(files)['model_type']})"
    notes: list[str] = []
    started = time.monotonic()
    runner = runner_of(settings, files, notes.append)
    slow = "transformers' modules" if isinstance(runner, ModulesRunner) else "plain torch"
    yield "runs on", "native kernels" if isinstance(runner, NativeRunner) else slow
    yield "loaded in", f"{time.monotonic() - started:.1f} s"
    if isinstance(runner, NativeRunner):
        yield "weights", f"{runner.decoder.weight_bytes / 2**20:.0f} MiB, format {settings.weight_format}"
    tokens = runner.num_blocks * runner.block_size
    yield "KV pool", f"{settings.kv_cache_memory_mib} MiB hold {tokens} tokens"
    yield "longest sequence", f"{runner.max_model_len} tokens (max_model_len)"
    full = tokens // runner.max_model_len
    plural = "s" if full != 1 else ""
    yield "at full length", f"{full} sequence{plural} at once; max_num_seqs is {settings.max_num_seqs}"
    yield from (("advice", note) for note in notes)
    average = tokens // settings.max_num_seqs
    if average < 256:
        yield (
            "advice",
            (
                f"with max_num_seqs {settings.max_num_seqs} the KV pool leaves {average} tokens for each: raise "
                "kv_cache_memory_mib, or requests will be preempted"
            ),
        )


def _cpu_name() -> str:
    try:
        for line in Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").splitlines():
            if line.startswith("model name"):
                return line.split(":", 1)[1].strip()
    except OSError:
        pass
    return platform.machine()


def _memory() -> tuple[float, float]:
    """GiB in all and available."""
    page = os.sysconf("SC_PAGE_SIZE")
    total, free = os.sysconf("SC_PHYS_PAGES") * page, os.sysconf("SC_AVPHYS_PAGES") * page
    return total / 2**30, free / 2**30


def main(arguments: list[str]) -> int:
    try:
        for what, finding in machine():
            print(f"{what:18} {finding}", flush=True)
        for argument in arguments:
            print()
            for what, finding in model(Path(argument)):
                print(f"{what:18} {finding}", flush=True)
    except PythonLLMError as error:
        print(f"python-llm: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
