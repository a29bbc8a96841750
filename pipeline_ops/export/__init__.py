"""The export job: checks of the SavedModel, other formats, and the publication."""
