"""The paper again: scales as data, their trainings and measurements, and a report with a verdict on every claim."""
