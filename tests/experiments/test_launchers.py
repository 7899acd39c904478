"""An experiment's jobs as jobs of a cluster, by submitit: here by its executor for one machine."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from functools import partial

import pytest
from tasks import cbmi, refused

pytest.importorskip("submitit")

from cbmi.errors import UserError
from cbmi.experiments import experiment
from cbmi.experiments.launchers import Command, SlurmLauncher, slurm_options

from .test_experiment import result_of


def test_options():
    assert slurm_options(["partition=gpu", "timeout_min=60"]) == {
        "partition": "gpu",
        "timeout_min": 60,
    }
    with pytest.raises(UserError, match="--slurm: 'gpu' should be KEY=VALUE"):
        slurm_options(["gpu"])


def test_a_command_is_one_process_that_says_how_it_ended(tmp_path):
    output = tmp_path / "output"
    script = "import sys; print('said'); sys.exit(3)"
    assert Command([sys.executable, "-c", script], str(output))() == 3
    assert output.read_text() == "said\n"


def test_what_runs_out_of_time_is_stopped_and_queued_again(tmp_path):
    """SIGTERM, so that it saves; what is queued is the same command."""
    script = (
        "import signal, sys, time\n"
        "signal.signal(signal.SIGTERM, lambda *_: (print('saved', flush=True), sys.exit(0)))\n"
        "print('begun', flush=True)\n"
        "time.sleep(60)\n"
    )
    output = tmp_path / "output"
    command = Command([sys.executable, "-c", script], str(output))
    with open(output, "ab") as file:
        command.process = subprocess.Popen(command.command, stdout=file)
    while not output.read_text():
        time.sleep(0.05)
    queued = command.checkpoint().function
    assert output.read_text() == "begun\nsaved\n"
    assert (queued.command, queued.output) == (command.command, command.output)


@pytest.fixture
def interruptible():
    """Shells have what they start in the background ignore SIGINT, and all that comes of it."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.usefixtures("interruptible")
def test_jobs_of_a_cluster_can_be_waited_for_and_stopped(tmp_path):
    launcher = SlurmLauncher(tmp_path / "slurm", {"timeout_min": 5, "partition": "x"}, "local")
    script = "import time; print('begun', flush=True); time.sleep({})"
    outputs = [tmp_path / "short", tmp_path / "long"]
    jobs = []
    for output, seconds in zip(outputs, (0, 600), strict=True):
        command = [sys.executable, "-c", script.format(seconds)]
        jobs.append(launcher.launch(command, output, {}, 0))
    assert jobs[0].wait() == 0
    while not (outputs[1].exists() and outputs[1].read_text()):
        time.sleep(0.1)
    begun = time.monotonic()
    jobs[1].terminate()
    assert jobs[1].wait() != 0
    assert time.monotonic() - begun < 60


@pytest.mark.slow
def test_the_same_results_as_without(whole, experiment_file, tmp_path, monkeypatch):
    monkeypatch.setattr(experiment, "SlurmLauncher", partial(SlurmLauncher, cluster="local"))
    path = experiment_file()
    options = ["--launcher", "slurm", "--jobs", "2", "--slurm", "timeout_min=30"]
    finished = cbmi("experiment", path, *options)
    assert finished.returncode == 0, finished.stderr.decode()
    assert result_of(tmp_path / "experiment") == result_of(whole)


@pytest.mark.slow
def test_options_that_do_not_go_together(experiment_file):
    path = experiment_file()
    assert "--devices: Slurm chooses them" in refused(
        "experiment", path, "--launcher", "slurm", "--devices", "cpu"
    )
    assert "are for --launcher slurm" in refused("experiment", path, "--slurm", "partition=x")
    assert "are for --launcher slurm" in refused("experiment", path, "--jobs", "3")
