"""Where work runs: in this process, in processes of this machine, on a cluster; and who holds a folder."""

from marble.compute.cluster import Cluster
from marble.compute.executor import Done, Executor, Failed, describe, heard_by, tell
from marble.compute.inline import Inline
from marble.compute.limits import Limits
from marble.compute.processes import Processes

__all__ = ["Cluster", "Done", "Executor", "Failed", "Inline", "Limits", "Processes", "describe", "heard_by", "tell"]
