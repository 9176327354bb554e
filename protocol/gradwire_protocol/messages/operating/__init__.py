"""What people see of a run and order: what workers log, and orders of operators."""
