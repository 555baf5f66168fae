"""What is learned, how it is judged and what is said: losses, metrics, calibration, decisions.

    registry                 TASKS: every task by name
    base                     Task, Decision: the contract
    criterion, metric        what every loss and every metric is, whatever the task
    classification           the task;  cross_entropy  its losses;  classification_metrics  its scores
    calling                  which class is called
    temperature, threshold   what validation says about a classifier's probabilities and decisions
    survival                 the task;  cox, discrete  its two losses;  survival_metrics  its scores
    regression               one number per case;  regression_metrics  its scores
    baseline                 survival curves for a Cox model
    weighted                 metrics of thousands of resampled cohorts at once
    kaplan_meier             the curve of a group, its interval, and the log-rank test between groups

Only the losses use torch; a metric is a function of numpy arrays and can be computed from a table of predictions.
"""
