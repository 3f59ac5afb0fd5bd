"""What a run would take, takes and took, in time and money: forecasts, measured rates, the bill."""
