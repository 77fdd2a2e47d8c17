"""A plug-in of Idiolect."""
