"""The paper again: scales as data, plans of trainings and measurements, and a report with a verdict on every claim."""
