"""Reading model repositories: what is there, what is asked for, and what is wrong with either."""

from __future__ import annotations

from pathlib import Path

import pytest

from python_llm_client import repository
from python_llm_client.errors import UsageError

LLM = 'backend: "python_llm"\n'


def add(folder: Path, name: str, config: str = LLM, settings: str | None = '{"model": "org/name"}') -> None:
    version = folder / name / "1"
    version.mkdir(parents=True)
    (folder / name / "config.pbtxt").write_text(config)
    if settings is not None:
        (version / "model.json").write_text(settings)


@pytest.fixture
def models(tmp_path: Path) -> dict[str, repository.Model]:
    add(tmp_path, "smollm2")
    add(tmp_path, "qwen2.5")
    add(tmp_path, "echo", 'backend: "python" instance_group [{count: 3}, {count: 2}]')
    add(tmp_path, "pipeline", 'platform: "ensemble" ensemble_scheduling { step [{model_name: "echo"}] }')
    (tmp_path / ".git").mkdir()
    return repository.read_repositories([tmp_path])


def test_models_are_read_with_backend_instances_and_steps(models: dict[str, repository.Model]) -> None:
    read = {name: (model.backend, model.instances, model.steps) for name, model in models.items()}
    assert read == {
        "echo": ("python", 5, ()),
        "pipeline": ("", 0, ("echo",)),
        "qwen2.5": ("python_llm", 1, ()),
        "smollm2": ("python_llm", 1, ()),
    }


def test_a_selected_ensemble_brings_the_models_it_calls(models: dict[str, repository.Model]) -> None:
    assert list(repository.select(models, ["pipeline"])) == ["echo", "pipeline"]
    assert list(repository.select(models, [])) == ["echo", "pipeline", "qwen2.5", "smollm2"]


def test_an_unknown_model_names_the_nearest_and_all(models: dict[str, repository.Model]) -> None:
    with pytest.raises(UsageError, match=r'"smolm2"; did you mean "smollm2".*echo, pipeline, qwen2\.5, smollm2'):
        repository.select(models, ["smolm2"])


def test_a_missing_repository_is_named(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="nowhere is not a folder"):
        repository.read_repositories([tmp_path / "nowhere"])


def test_an_empty_repository_says_what_belongs_there(tmp_path: Path) -> None:
    (tmp_path / "README.md").write_text("not a model")
    with pytest.raises(UsageError, match=r"is empty: .* config\.pbtxt and a numbered folder"):
        repository.read_repositories([tmp_path])


def test_a_model_that_is_given_as_a_repository_is_told(tmp_path: Path) -> None:
    add(tmp_path, "smollm2")
    with pytest.raises(UsageError, match="smollm2 is a model, not a repository of models"):
        repository.read_repositories([tmp_path / "smollm2"])


def test_one_name_in_two_repositories_is_refused(tmp_path: Path) -> None:
    for folder in ("a", "b"):
        add(tmp_path / folder, "same")
    with pytest.raises(UsageError, match="same is in two repositories"):
        repository.read_repositories([tmp_path / "a", tmp_path / "b"])


def test_a_broken_configuration_tells_file_and_line(tmp_path: Path) -> None:
    add(tmp_path, "broken", 'backend: "python_llm"\nmax_batch_sise: 0\n')
    with pytest.raises(UsageError, match=r'broken/config\.pbtxt is not .*: 2:1 : .*"max_batch_sise"'):
        repository.read_repositories([tmp_path])


def test_a_broken_configuration_is_one_line(tmp_path: Path) -> None:
    add(tmp_path, "broken", 'backend: "python_llm\n')
    with pytest.raises(UsageError) as caught:
        repository.read_repositories([tmp_path])
    assert "\n" not in str(caught.value)


def test_ensembles_beside_the_default_repository_are_served_too(tmp_path: Path) -> None:
    add(tmp_path / "model_repository", "model")
    package = tmp_path / "elsewhere" / "backends" / "python_llm"
    assert repository.default_repositories(tmp_path, package) == [tmp_path / "model_repository"]
    (tmp_path / "ensembles").mkdir()
    assert repository.default_repositories(tmp_path, package) == [tmp_path / "model_repository"], "it holds none"
    add(tmp_path / "ensembles", "pipeline", config='platform: "ensemble"')
    expected = [tmp_path / "model_repository", tmp_path / "ensembles"]
    assert repository.default_repositories(tmp_path, package) == expected


def test_the_default_repository_is_here_else_beside_the_package(tmp_path: Path) -> None:
    package = tmp_path / "source" / "backends" / "python_llm"
    here, beside = tmp_path / "model_repository", tmp_path / "source" / "model_repository"
    with pytest.raises(UsageError, match="--model-repository"):
        repository.default_repository(tmp_path, package)
    beside.mkdir(parents=True)
    assert repository.default_repository(tmp_path, package) == beside
    here.mkdir()
    assert repository.default_repository(tmp_path, package) == here


def test_overrides_keep_dots_in_names_and_equal_signs_in_values(models: dict[str, repository.Model]) -> None:
    assignments = ["qwen2.5.max_num_seqs=8", "smollm2.model=a=b", "smollm2.max_num_seqs=4"]
    assert repository.parse_overrides(assignments, models) == {
        "qwen2.5": {"max_num_seqs": "8"},
        "smollm2": {"model": "a=b", "max_num_seqs": "4"},
    }


@pytest.mark.parametrize(
    ("assignment", "message"),
    [
        ("smollm2", "must look like MODEL.SETTING=VALUE"),
        ("max_num_seqs=8", "must look like MODEL.SETTING=VALUE"),
        ("smol.max_num_seqs=8", 'no model "smol"'),
        ("echo.max_num_seqs=8", 'the model echo runs on the backend "python"'),
        ("smollm2.max_num_seq=8", 'unknown setting "max_num_seq"; did you mean "max_num_seqs"'),
        ("smollm2.max_num_seqs=many", "must be a whole number, not 'many'"),
    ],
)
def test_a_wrong_override_is_refused(models: dict[str, repository.Model], assignment: str, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        repository.parse_overrides([assignment], models)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (None, r"1/model\.json does not exist"),
        ("{", "is not readable JSON"),
        ('{"model": "org/name", "block_sise": 16}', 'did you mean "block_size"'),
        ("{}", '"model" is missing'),
    ],
)
def test_a_wrong_model_json_is_found_before_the_start(tmp_path: Path, settings: str | None, message: str) -> None:
    add(tmp_path, "smollm2", settings=settings)
    with pytest.raises(UsageError, match=message):
        repository.check_settings(repository.read_repositories([tmp_path]).values(), {})


def test_an_override_can_complete_a_model_json(tmp_path: Path) -> None:
    add(tmp_path, "smollm2", settings="{}")
    models = repository.read_repositories([tmp_path])
    repository.check_settings(models.values(), {"smollm2": {"model": "org/name"}})


def test_a_model_without_a_version_says_where_it_belongs(tmp_path: Path) -> None:
    (tmp_path / "smollm2").mkdir()
    (tmp_path / "smollm2" / "config.pbtxt").write_text(LLM)
    with pytest.raises(UsageError, match=r"smollm2 has no version: .*smollm2/1"):
        repository.check_settings(repository.read_repositories([tmp_path]).values(), {})


def test_a_language_model_without_a_backend_is_told_the_line_to_write(tmp_path: Path) -> None:
    add(tmp_path, "smollm2")
    (tmp_path / "smollm2" / "config.pbtxt").unlink()
    with pytest.raises(UsageError, match=r'write backend: "python_llm" into .*smollm2/config\.pbtxt'):
        repository.check_settings(repository.read_repositories([tmp_path]).values(), {})


@pytest.mark.parametrize("backend", ["python_lm", "python-llm", "pythonllm"])
def test_a_misspelt_backend_names_the_right_one(tmp_path: Path, backend: str) -> None:
    add(tmp_path, "smollm2", f'backend: "{backend}"')
    with pytest.raises(UsageError, match=f'names the backend "{backend}"; did you mean "python_llm"'):
        repository.check_settings(repository.read_repositories([tmp_path]).values(), {})
