"""Faults that are made on purpose, by the means that the kernel offers, for drills and tests (docs/drills.md).

No production code knows of them: what a fault does is done from outside, to real processes, files, links and memory. A
fault is planned as steps, each of which knows how to do itself and how to undo itself; the steps are on record before
the first is done (`record`), so that nothing is left behind, whatever becomes of who injected it.
"""
