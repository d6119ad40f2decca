"""What is done with results: where they came from, and later their statistics, figures and reports."""
