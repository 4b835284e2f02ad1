"""The worker scripts of `holdfast bench recovery`, `overhead` and `gpu`: one per contestant.

The peers' scripts are run as files, not as modules of Holdfast: what they restart must not pay for it.
"""
