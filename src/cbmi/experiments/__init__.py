"""Many runs to one table: tasks × systems × seeds.

Reading order, which is also the order in which a job comes into being:

    settings.py    the experiment file: tasks, systems, seeds, what to report; contrasts.py: the
                   grammar of contrasts
    plan.py        the jobs that it comes to; jobs.py: one of them, and whether it is done
    runner.py      a process per job, as many at a time as there are devices
    results.py     a finished job's files to its record; records.py: the records themselves
    measure.py     the report's metrics, and significance tests between the systems;
                   measure_contrasts.py: of contrasts
    table.py       mean ± std per system and test set, as Markdown and LaTeX
    figures.py     the same as pictures; accuracy.py: what the analysis of the priors found
    report.py      all of it as a page, with report_comparisons.py, report_costs.py, report_jobs.py

experiment.py is the command that does these in turn. benchmark.py stands apart: it measures speed.
"""
