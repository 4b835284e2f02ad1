"""The budget: spend by cause, team and month, invoices, forecasts, own or rent."""
