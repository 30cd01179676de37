"""Injection of faults for drills and tests, by means of the kernel (docs/drills.md).

No production code knows of them: a fault acts from outside on real processes, files, links and memory. A fault is
planned as steps that can be done and undone. The steps are recorded before the first is done (`injections`), so that
they can be undone even if the injecting process dies.
"""
