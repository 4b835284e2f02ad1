"""What the systems of a cluster say about it, as surveys: Slurm, Prometheus, Redfish, Kubernetes.

Everything here is a function of text or of answers that somebody else has fetched. A line, label or entry
that makes no sense is passed over, because one odd node must not hide all others.
"""
