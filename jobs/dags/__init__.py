"""Schedules for Airflow."""
