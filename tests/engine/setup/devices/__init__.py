"""Tests of engine/setup/devices."""
