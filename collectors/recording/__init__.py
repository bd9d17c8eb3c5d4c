"""What `greylag replay` reads: recordings as a source of batches in time order."""

from collectors.recording.recording import Counts, Recording

__all__ = ["Counts", "Recording"]
