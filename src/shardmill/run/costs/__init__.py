"""The time and cost of a run, before and after it: forecasts, measured rates, the bill.

Design: docs/design/estimates.md
"""
