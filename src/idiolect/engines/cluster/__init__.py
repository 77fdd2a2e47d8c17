"""Several machines, by Ray: an engine whose workers are actors anywhere in a cluster, and runs as tasks. Ray is
imported on first use, and in this package alone."""
