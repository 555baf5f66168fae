"""Features of other tools: TRIDENT, CLAM, STAMP, Slideflow, AtlasPatch, ZoomMIL, torchmil, LazySlide, bare arrays."""

from marble.interchange.audit import AuditRow
from marble.interchange.export_store import export_store
from marble.interchange.import_levels import ImportResult, import_levels
from marble.interchange.spec import ImportSpec

__all__ = ["AuditRow", "ImportResult", "ImportSpec", "export_store", "import_levels"]
