"""An independent exam of `holdfast diagnose`: clusters that its authors did not simulate.

It knows the product by its documentation and its command line only. Nothing here may import or imitate
`holdfast.detect`, `holdfast.diagnose`, `holdfast.drills` or `holdfast.twin`; see docs/exam.md.
"""
