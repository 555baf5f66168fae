"""Where work runs: in this process, in processes of this machine, on a cluster."""

from marble.compute.executor import Done, Executor, Failed, describe
from marble.compute.inline import Inline
from marble.compute.processes import Processes

__all__ = ["Done", "Executor", "Failed", "Inline", "Processes", "describe"]
