"""Features of other tools, in and out: TRIDENT, CLAM, STAMP, Slideflow, AtlasPatch, ZoomMIL and plain HDF5."""

from marble.bags.foreign.audit import AuditRow
from marble.bags.foreign.exporting import export_store
from marble.bags.foreign.importing import ImportResult, import_levels, import_multilevel

__all__ = ["AuditRow", "ImportResult", "export_store", "import_levels", "import_multilevel"]
