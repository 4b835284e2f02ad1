"""The worker scripts of `holdfast bench recovery` and `overhead`: one per contestant, all training one model.

The peers' scripts are run as files, not as modules of Holdfast: what they restart must not pay for it.
"""
