"""Kubernetes: one pod, made by one function, for every front that decides how many of them there are.

`options` and `pod` need no library: they also make the manifests that are kept in git. Only `api` talks to a cluster.

Design: docs/design/kubernetes.md
"""
