"""What was measured, and how: one module per question, all run by `python -m benchmarks NAME`."""
