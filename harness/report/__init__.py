"""The report: one HTML file of a run or a study that opens without a network."""
