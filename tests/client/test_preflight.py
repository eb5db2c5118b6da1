"""Each check of the machine: what passes, and the sentence for what does not."""

from __future__ import annotations

import os
import socket
from pathlib import Path

import pytest

from python_llm_client import preflight
from python_llm_client.errors import UsageError

MIB = 1 << 20


def test_linux_with_a_new_enough_glibc_passes() -> None:
    preflight.check_machine("Linux", "x86_64", ("glibc", "2.35"))
    preflight.check_machine("Linux", "x86_64", ("glibc", "2.41"))


@pytest.mark.parametrize(
    ("machine", "found"),
    [
        (("Darwin", "arm64", ("", "")), "this is Darwin arm64"),
        (("Linux", "aarch64", ("glibc", "2.39")), "this is Linux aarch64"),
        (("Linux", "x86_64", ("glibc", "2.31")), "this is glibc 2.31"),
        (("Linux", "x86_64", ("", "")), "this is Linux x86_64 without glibc"),
    ],
)
def test_other_machines_are_named(machine: tuple[str, str, tuple[str, str]], found: str) -> None:
    with pytest.raises(UsageError, match=f"glibc 2.35 or newer, and {found}:"):
        preflight.check_machine(*machine)


def stub_that(tmp_path: Path, script: str) -> Path:
    stub = tmp_path / "3.12" / "triton_python_backend_stub"
    stub.parent.mkdir()
    stub.write_text(f"#!/bin/sh\n{script}\n")
    stub.chmod(0o755)
    return stub


def test_a_stub_that_complains_about_its_arguments_can_start(tmp_path: Path) -> None:
    preflight.check_stub(stub_that(tmp_path, "echo 'Expected 9 arguments, found 1 arguments.'; exit 1"), os.environ)


def test_a_missing_libpython_names_the_package_to_install(tmp_path: Path) -> None:
    stub = stub_that(tmp_path, "echo 'loading shared libraries: libpython3.12.so.1.0: no such file' >&2; exit 127")
    with pytest.raises(UsageError, match=r"libpython3\.12\.so\.1\.0 is missing.*apt-get install libpython3\.12"):
        preflight.check_stub(stub, os.environ)


def test_a_stub_that_fails_otherwise_is_quoted_even_with_exit_status_1(tmp_path: Path) -> None:
    stub = stub_that(tmp_path, "echo \"version 'GLIBC_2.38' not found\" >&2; exit 1")
    with pytest.raises(UsageError, match=r"does not start \(version 'GLIBC_2\.38' not found\)"):
        preflight.check_stub(stub, os.environ)


def test_free_ports_pass_and_a_taken_one_is_named_with_its_flag() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(UsageError, match=rf"port {port} \(--http-port\) is taken"):
            preflight.check_ports("127.0.0.1", {"--http-port": port})
    preflight.check_ports("127.0.0.1", {"--http-port": port})


def test_a_port_asked_for_twice_names_both_flags() -> None:
    with pytest.raises(UsageError, match="--http-port and --grpc-port are both"):
        preflight.check_ports("127.0.0.1", {"--http-port": 39999, "--grpc-port": 39999})


@pytest.mark.parametrize("port", [0, -1, 65536])
def test_a_port_that_is_none_tells_the_range(port: int) -> None:
    with pytest.raises(UsageError, match=f"--grpc-port must be between 1 and 65535, not {port}"):
        preflight.check_ports("127.0.0.1", {"--grpc-port": port})


@pytest.mark.parametrize("host", ["192.0.2.1", "no.such.host.invalid"])
def test_a_host_that_is_not_this_machine_is_refused(host: str) -> None:
    with pytest.raises(UsageError, match=host.replace(".", r"\.")):
        preflight.check_ports(host, {"--http-port": 39999})


def test_enough_shared_memory_is_silent() -> None:
    assert preflight.check_shared_memory(128 * MIB, 2) is None


def test_little_shared_memory_warns_and_tells_the_option() -> None:
    warning = preflight.check_shared_memory(64 * MIB, 2)
    assert warning is not None
    assert "64 MiB free; 2 model instance(s) may grow to 128 MiB" in warning
    assert "--shm-size=256m" in warning


def test_too_little_shared_memory_is_refused_with_the_option() -> None:
    with pytest.raises(UsageError, match=r"7 MiB free, and 1 model instance\(s\) need 8 MiB.*--shm-size="):
        preflight.check_shared_memory(8 * MIB - 1, 1)


def test_a_machine_without_shared_memory_is_told(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="mount a tmpfs"):
        preflight.free_shared_memory(tmp_path / "missing")
