"""Compiles the CPU kernels. Everything else about the package stands in pyproject.toml."""

import platform
from glob import glob

from setuptools import Extension, setup

KERNELS = "backends/python_llm/runner/kernels"

setup(
    ext_modules=[
        Extension(
            # A plain C library, loaded with ctypes: it needs neither Python's nor torch's headers.
            "python_llm.runner.kernels._kernels",
            sources=sorted(glob(f"{KERNELS}/src/*.cpp")),
            depends=sorted(glob(f"{KERNELS}/src/*.h")),
            extra_compile_args=[
                "-std=c++17",
                "-O3",
                "-mavx2",
                "-mfma",
                "-mf16c",
                # A sum must not depend on what the compiler fuses around it.
                "-ffp-contract=off",
                "-pthread",
            ],
            extra_link_args=["-pthread"],
            # Without a compiler the install goes on, and models run on plain torch.
            optional=True,
        )
    ]
    if platform.machine() == "x86_64"
    else [],
)
