"""CSV and TSV: records out of lines, and cuts that no quoted newline can fool."""
