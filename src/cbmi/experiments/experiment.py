"""`cbmi experiment`: plan, run what is missing, report."""

from __future__ import annotations

import statistics

from cbmi.errors import UserError
from cbmi.experiments.jobs import Job, Plan
from cbmi.experiments.results import write_results
from cbmi.experiments.runner import Runner, parse_shard
from cbmi.experiments.settings import Experiment
from cbmi.files import check_writable
from cbmi.objectives import build
from cbmi.progress import clock, say
from cbmi.training.train import Stopped
from cbmi.training.work import Work, language_model_flops, matrix_rate, passes, translator_flops
from cbmi.training.world import choose_device, choose_precision

USUAL_MFU = 0.3  # of a step, where no job has shown how fast this machine is
START_UP = 10.0  # seconds of a job around its training: the process begins, the test sets are translated
USUAL_LENGTH = 27  # pieces per sentence


def run_experiment(
    experiment: Experiment, devices: list[str], shard: str | None, *, dry_run: bool, report_only: bool
) -> int:
    """Do an experiment; gives the exit status: 1 where a job failed."""
    part = parse_shard(shard)
    for device in devices:
        choose_device(device)
    plan = Plan(experiment)
    plan.results()  # refuses what was done with other settings
    if dry_run:
        print(describe(plan, devices, part))
        return 0
    if report_only:
        _report(plan, wanted=True)
        return 0
    for folder in (plan.folder, plan.jobs_folder):
        check_writable(folder)
    runner = Runner(plan, devices, part)
    runner.run()
    write_results(plan)
    if runner.stop_signal is not None:
        say(f"Stopped: {plan.folder}; the same command goes on.")
        raise Stopped(runner.stop_signal)
    for name, reason in runner.failed.items():
        output = plan.jobs[name].folder / "output.txt"
        say(f"Failed: {name}: {reason}" + (f" (see {output})" if output.exists() else ""))
    if plan.results():
        _report(plan, wanted=False)
    return 1 if runner.failed else 0


def _report(plan: Plan, wanted: bool) -> None:
    """Where what it is made with is not installed here, say so; it can be made elsewhere."""
    from cbmi.experiments.report import write_report

    try:
        folder = write_report(plan)
    except UserError as error:
        if wanted or "extra" not in str(error):
            raise
        say(f"No report yet: {error}")
        return
    print(f"Report: {folder / 'report.html'}")


def describe(plan: Plan, devices: list[str], shard: tuple[int, int]) -> str:
    """The jobs, what is done, and how long the rest may take."""
    wanted = {job.id for job in plan.wanted(shard)}
    seconds = estimates(plan, devices[0])
    rows = [("job", "steps", "", "")]
    for job in plan.jobs.values():
        if job.id in wanted:
            rows.append((job.id, f"{job.steps:,}" if job.steps else "", "to do", f"about {clock(seconds[job.id])}"))
        else:
            rows.append((job.id, f"{job.steps:,}" if job.steps else "", "done" if job.done() else "not here", ""))
    widths = [max(len(row[i]) for row in rows) for i in range(3)]
    lines = [f"{a.ljust(widths[0])}  {b.rjust(widths[1])}  {c.ljust(widths[2])}  {d}".rstrip() for a, b, c, d in rows]
    # One device named several times does more at a time, but none of it faster.
    total = sum(seconds[name] for name in wanted) / len(set(devices))
    at_a_time = "one at a time" if len(devices) == 1 else f"{len(devices)} at a time"
    lines += ["", f"{len(wanted)} of {len(plan.jobs)} jobs to do, {at_a_time}: about {clock(total)}"]
    return "\n".join(lines)


def estimates(plan: Plan, device: str) -> dict[str, float]:
    """Seconds that each job may take: its arithmetic, at the speed of this device or of the jobs already done."""
    chosen = choose_device(device)
    rate = matrix_rate(chosen, choose_precision("auto", chosen)) * USUAL_MFU
    arithmetic = {job.id: operations(job) / rate for job in plan.jobs.values()}
    done = [(arithmetic[record["job"]], record["job_seconds"]) for record in plan.results()]
    known = [max(seconds - START_UP, 0.1) / expected for expected, seconds in done if expected]
    factor = statistics.median(known) if known else 1.0
    return {name: START_UP + seconds * factor for name, seconds in arithmetic.items()}


def operations(job: Job) -> float:
    """Of the job's training, with sentences of usual length and every step full."""
    config, total = job.config, 0.0
    tokens = config.batch.tokens * config.batch.accumulate
    work = Work(tokens, tokens, *[tokens * USUAL_LENGTH] * 3)
    model, pieces = config.model, config.data.vocabulary.size
    for stage in config.stages:
        if stage.name in job.stages:
            of_translator, of_lm = passes(stage.language_model, build(stage.objective, stage.name))
            step = of_translator * translator_flops(work, model, pieces)
            total += stage.steps * (step + of_lm * language_model_flops(work, model, pieces))
    return total
