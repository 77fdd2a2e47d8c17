"""Files and archives as they are published, and how they are fetched."""
