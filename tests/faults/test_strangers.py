"""What a stranger may send: run directories, YAML, JSON and text that are meant to do harm."""

from __future__ import annotations

import gzip
import json
import os
import shutil
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tasks import cbmi, environment, refused, write_run, write_task

from cbmi.config import read_config
from cbmi.data import lines as lines_module
from cbmi.data.vocabulary import learn
from cbmi.errors import UserError
from cbmi.experiments import runner
from cbmi.experiments.jobs import Job
from cbmi.experiments.records import JobKind
from cbmi.files import read_json
from cbmi.training.checkpoint import damage, read_state
from cbmi.yaml_text import MOST_VALUES, parse_yaml


@pytest.fixture(scope="module")
def trained(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("strangers")
    write_task(folder, train=40, valid=4)
    stages = [{"name": "ce", "language_model": "train", "steps": 4}]
    assert cbmi("train", write_run(folder, stages=stages)).returncode == 0
    return folder


@pytest.fixture
def run(trained, tmp_path) -> Path:
    return shutil.copytree(trained / "run", tmp_path / "run", symlinks=True)


def bomb(levels: int) -> str:
    lines = ["a0: &a0 [x, x, x, x, x, x, x, x, x, x]"]
    for level in range(1, levels):
        aliases = ", ".join([f"*a{level - 1}"] * 10)
        lines.append(f"a{level}: &a{level} [{aliases}]")
    return "\n".join(lines)


def merge_bomb(levels: int) -> str:
    lines = ["a0: &a0 {x: 1}"]
    for level in range(1, levels):
        aliases = ", ".join([f"*a{level - 1}"] * 10)
        lines.append(f"a{level}: &a{level} {{<<: [{aliases}]}}")
    return "\n".join(lines)


@pytest.mark.parametrize("make", [bomb, merge_bomb])
def test_aliases_of_aliases_are_refused_at_once(make):
    begun = time.process_time()
    with pytest.raises(UserError, match=f"over {MOST_VALUES:,} values"):
        parse_yaml(make(12), "run.yaml")
    assert time.process_time() - begun < 5  # to follow them all would take hours
    assert parse_yaml("a: &a {x: 1}\nb: *a\nc: {<<: *a, y: 2}", "run.yaml")["c"] == {"x": 1, "y": 2}


def test_a_value_that_contains_itself_is_refused():
    with pytest.raises(UserError):
        parse_yaml("a: &a [*a]", "run.yaml")


def test_many_keys_take_time_in_proportion():
    """Ten times the keys take about ten times as long, not a hundred times."""

    def seconds(count: int) -> float:
        text = "\n".join(f"key{number}: 1" for number in range(count))
        begun = time.process_time()
        assert len(parse_yaml(text, "run.yaml")) == count
        return time.process_time() - begun

    assert seconds(20_000) < 40 * seconds(2_000)


@settings(max_examples=200)
@given(st.text(max_size=80))
def test_any_text_is_yaml_or_a_sentence(text):
    with suppress(UserError):
        parse_yaml(text, "run.yaml")


@settings(max_examples=100)
@given(st.binary(max_size=60))
def test_any_bytes_are_json_or_a_sentence(tmp_path_factory, content):
    folder = tmp_path_factory.mktemp("json")
    path = folder / "state.json"
    path.write_bytes(content)
    with suppress(UserError):
        read_json(path)
        read_state(folder)


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=9), inner),
    max_leaves=6,
)
keys = st.sampled_from(["format", "step", "stage", "scalers", "made_with", "fusion", "x"])


@settings(max_examples=200)
@given(st.dictionaries(keys, json_values, max_size=6))
def test_odd_states_and_manifests_end_in_a_sentence(tmp_path_factory, values):
    folder = tmp_path_factory.mktemp("odd")
    (folder / "state.json").write_text(json.dumps({"format": 1} | values))
    (folder / "manifest.json").write_text(json.dumps(values))
    with suppress(UserError):
        read_state(folder)
    assert damage(folder) is not None


def test_a_manifest_names_files_of_its_own_folder_only(run):
    folder = (run / "best").resolve()
    manifest = json.loads((folder / "manifest.json").read_text())
    manifest["../../../../etc/passwd"] = "0" * 64
    (folder / "manifest.json").unlink()
    (folder / "manifest.json").write_text(json.dumps(manifest))
    assert damage(folder) == "manifest.json is damaged"


@pytest.mark.parametrize(
    "name",
    [
        "config.yaml",
        "best/state.json",
        "best/manifest.json",
        "best/translator.safetensors",
        "vocab/shared.model",
    ],
)
@pytest.mark.timeout(60)
def test_a_pipe_in_place_of_a_file_is_refused(trained, run, name):
    path = (run / name).parent.resolve() / Path(name).name
    path.unlink()
    os.mkfifo(path)
    message = refused("translate", run, trained / "test.src")
    assert "this is not an ordinary file" in message


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("width: 32", "width: 1048576"),
        ("width: 32", "width: 320"),  # below the size of the vocabulary
        ("feed_forward: 64", "feed_forward: 1073741824"),
        ("encoder_layers: 2", "encoder_layers: 1000000000"),
    ],
)
@pytest.mark.timeout(60)
def test_sizes_are_bounded_by_the_weights(trained, run, old, new):
    state = (run / "best").resolve() / "state.json"
    values = json.loads(state.read_text())
    values["made_with"] = {}  # a stranger's would fit
    state.unlink()
    state.write_text(json.dumps(values))
    manifest = state.with_name("manifest.json")
    from cbmi.digests import sha256

    digests = json.loads(manifest.read_text()) | {"state.json": sha256(state)}
    manifest.unlink()
    manifest.write_text(json.dumps(digests))
    config = run / "config.yaml"
    text = config.read_text()
    assert old in text
    config.write_text(text.replace(old, new))
    message = refused("translate", run, trained / "test.src")
    assert "is not that of the weights in" in message


@pytest.mark.parametrize("name", ["log.jsonl", "config.yaml"])
def test_bytes_that_are_no_text_end_in_a_sentence(trained, run, name):
    with open(run / name, "ab") as file:
        file.write(b"\xff\xfe\n")
    path = write_run(trained, "bytes.yaml", output=str(run), stages=[{"name": "ce", "steps": 6}])
    result = cbmi("train", path)
    assert result.returncode in (0, 2)
    assert "Traceback" not in result.stderr.decode()


def test_a_line_beyond_memory_is_a_sentence(trained, monkeypatch, tmp_path):
    monkeypatch.setattr(lines_module, "LONGEST_LINE", 1000)
    file = tmp_path / "long.gz"
    with gzip.open(file, "wb") as packed:
        packed.write(b"short\n" + b"x" * 2_000_000 + b"\n")
    message = refused("translate", trained / "run", file)
    assert "line 2: this line is over" in message


@pytest.mark.slow
def test_a_module_in_the_working_folder_is_not_run_by_an_experiments_jobs(trained, tmp_path):
    """Python would import a random.py that lies there in place of its own."""
    marker = tmp_path / "run-by-mistake"
    (tmp_path / "random.py").write_text(f"open({str(marker)!r}, 'w')\nraise SystemExit(9)\n")
    job = Job("x", JobKind.CORPUS, "x", 1, trained, read_config(trained / "run.yaml"))
    command = runner.job_command(job, "cpu", None)
    result = subprocess.run(
        [*command[: command.index("cbmi") + 1], "--version"],
        env=environment(),
        cwd=tmp_path,
        capture_output=True,
    )
    assert result.returncode == 0, result.stderr.decode()
    assert not marker.exists()


@pytest.mark.slow
@pytest.mark.parametrize("closed", ["<&-", ">&-", "2>&-", "<&- >&- 2>&-"])
def test_closed_streams(trained, tmp_path, closed):
    """No traceback, and nothing is lost silently: what cannot be printed is an error."""
    script = f"{sys.executable} -m cbmi translate {trained / 'run'} {trained / 'test.src'} {closed}"
    result = subprocess.run(["bash", "-c", script], env=environment(), capture_output=True)
    assert b"Traceback" not in result.stderr
    assert result.returncode == (2 if ">&-" in closed.replace("2>&-", "") else 0), result.stderr


@pytest.mark.parametrize(
    "arguments",
    [
        ["--beam", "100000"],
        ["--length-penalty", "1e308"],
    ],
)
def test_numbers_out_of_range(trained, arguments):
    result = cbmi("translate", trained / "run", trained / "test.src", *arguments)
    assert result.returncode == 2
    assert b"Traceback" not in result.stderr


@pytest.mark.parametrize("name", ["x" * 300, "a\0b"])
def test_an_output_that_cannot_be_a_name(trained, name):
    result = cbmi("train", trained / "run.yaml", f'output="{trained}/{name}"')
    assert result.returncode == 2, result.stderr.decode()
    assert b"Traceback" not in result.stderr


def test_a_corpus_too_small_for_the_smallest_vocabulary_is_told_so():
    with pytest.raises(UserError, match="300 are the least; use more text"):
        learn(["a b", "b a"], 300)


def test_the_last_resort_writes_a_report(monkeypatch, capsys, tmp_path):
    from cbmi import cli

    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))

    def fails(**_: object) -> None:
        raise KeyError("nobody thought of this")

    monkeypatch.setattr(cli, "app", fails)
    with pytest.raises(SystemExit) as end:
        cli.main()
    assert end.value.code == 70
    said = capsys.readouterr().err
    assert said.startswith(
        "cbmi: This should not have happened (KeyError: 'nobody thought of this')"
    )
    (report,) = tmp_path.glob("cbmi-error-*.txt")
    assert "Traceback" in report.read_text()
    assert str(report) in said
