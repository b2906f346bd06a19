"""Contents of the report: its tables, figures and drawings, gathered from all stages."""
