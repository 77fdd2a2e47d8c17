"""What everything stands on: errors, trees, randomness, options, expressions, files. Nothing here knows of learning."""
