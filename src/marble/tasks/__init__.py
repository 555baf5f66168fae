"""What is learned and how it is judged: losses, metrics, what to select on.

    base                     Task, Criterion, SurvivalTime, Undefined: the contract
    classification           cross-entropy and its relatives;  classification_metrics  their scores
    survival                 the task;  cox, discrete  its two losses;  survival_metrics  its scores
    baseline                 survival curves for a Cox model
    kaplan_meier             the curve of a group, its interval, and the log-rank test between groups

Only the losses use torch; a metric is a function of numpy arrays and can be computed from a table of predictions.
"""
