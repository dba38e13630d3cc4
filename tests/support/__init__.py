"""What several test files share: golden federations, literal formulas, drawn data and comparisons."""
