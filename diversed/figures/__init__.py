"""Figures and tables: functions of records."""
