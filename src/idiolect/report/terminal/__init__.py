"""What a terminal shows while runs go on: progress, and curves."""
