"""Surveys of a cluster from its live systems: Slurm, Prometheus, Redfish, Kubernetes.

Everything here is a function of text or answers that the caller has fetched. A line, label or entry that
makes no sense is skipped, because one odd node must not hide all others.
"""
