"""`cbmi experiment`: plan, run what is missing, report."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence

from cbmi.errors import MissingExtra, TrainingStopped
from cbmi.experiments.jobs import Job
from cbmi.experiments.launchers import SlurmLauncher
from cbmi.experiments.plan import Plan
from cbmi.experiments.registration import read_registration, register, registration_file
from cbmi.experiments.results import write_results
from cbmi.experiments.runner import Runner, parse_shard
from cbmi.experiments.settings import ExperimentSettings
from cbmi.files import check_writable
from cbmi.progress import clock, counted, say
from cbmi.reporting.tables import text_table
from cbmi.training.forecast import training_flops, usual_rate
from cbmi.training.world import choose_device, choose_precision

# Seconds of a job around its training: the process begins, the test sets are translated.
START_UP = 10.0


def run_experiment(
    experiment: ExperimentSettings,
    devices: list[str],
    shard: str | None,
    *,
    dry_run: bool,
    report_only: bool,
    only: Sequence[str] = (),
    slurm: Mapping[str, str | int] | None = None,
) -> int:
    """Do an experiment; returns the exit status, 1 where a job failed.

    With `only`, just the jobs of these names, and what they need. With `slurm`, options for its
    jobs, they run there: as many at a time as there are `devices`.
    """
    part = parse_shard(shard)
    for device in devices:
        choose_device(device)  # refuses one that is not there
    plan = Plan(experiment)
    plan.results()  # refuses what was done with other settings
    if report_only:
        _report(plan, required=True)
        return 0
    wanted = plan.wanted(part, only)
    known = read_registration(plan)  # refuses what was registered otherwise
    if dry_run:
        print(describe_plan(plan, devices, wanted))
        return 0
    for folder in (plan.folder, plan.jobs_folder):
        check_writable(folder)
    if experiment.register_:
        registration = register(plan)
        when = "Registered" if known is None else "Registered before,"
        say(f"{when} on {registration.date}: {registration_file(plan)}")
    launcher = None if slurm is None else SlurmLauncher(plan.folder / "slurm", slurm)
    runner = Runner(plan, devices, wanted, launcher)
    runner.run()
    write_results(plan)
    if runner.stop_signal is not None:
        say(f"Stopped: {plan.folder}; the same command resumes.")
        raise TrainingStopped(runner.stop_signal)
    for name, reason in runner.failed.items():
        output = plan.jobs[name].output_file
        hint = f" (see {output})" if output.exists() else ""
        say(f"Failed: {name}: {reason}{hint}")
    if plan.results():
        _report(plan, required=False)
    return 1 if runner.failed else 0


def _report(plan: Plan, required: bool) -> None:
    """Write the report. Without the packages for it, it can be made later, or elsewhere."""
    from cbmi.experiments.report import write_experiment_report

    try:
        folder = write_experiment_report(plan)
    except MissingExtra as error:
        if required:
            raise
        say(f"No report yet: {error}")
        return
    print(f"Report: {folder / 'report.html'}")


def describe_plan(plan: Plan, devices: list[str], to_do: Sequence[Job]) -> str:
    """The jobs, what is done, and how long the rest may take."""
    wanted = {job.id for job in to_do}
    seconds = estimated_seconds(plan, devices[0])
    rows = [("job", "steps", "", "")]
    for job in plan.jobs.values():
        steps = f"{job.steps:,}" if job.steps else ""
        if job.id in wanted:
            rows.append((job.id, steps, "to do", f"about {clock(seconds[job.id])}"))
        else:
            rows.append((job.id, steps, "done" if job.done() else "not now", ""))
    lines = text_table(rows, align="lrll")
    # One device named several times does more at a time, but none of it faster.
    total = sum(seconds[name] for name in wanted) / len(set(devices))
    at_a_time = "one at a time" if len(devices) == 1 else f"{len(devices)} at a time"
    lines.append("")
    jobs = f"{len(wanted)} of {counted(len(plan.jobs), 'job')} to do"
    lines.append(f"{jobs}, {at_a_time}: about {clock(total)}")
    return "\n".join(lines)


def estimated_seconds(plan: Plan, device: str) -> dict[str, float]:
    """Seconds that each job may take.

    Its arithmetic, at the speed of the jobs that are done, or else of this device.
    """
    chosen = choose_device(device)
    rate = usual_rate(chosen, choose_precision("auto", chosen))
    arithmetic = {}
    for job in plan.jobs.values():
        arithmetic[job.id] = training_flops(job.config, job.stages) / rate
    factors = []  # how much longer the jobs took that are done
    for result in plan.results():
        expected = arithmetic[result.job]
        if expected and result.job_seconds is not None:
            factors.append(max(result.job_seconds - START_UP, 0.1) / expected)
    factor = statistics.median(factors) if factors else 1.0
    return {name: START_UP + seconds * factor for name, seconds in arithmetic.items()}
