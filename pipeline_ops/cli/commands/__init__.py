"""The commands of `trainyard`, one file each."""
