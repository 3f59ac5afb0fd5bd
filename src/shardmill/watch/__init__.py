"""Seeing runs from outside: the web page of runs, the rules of alerts and who is told."""
